#!/bin/sh
# Runs the model of this bundle; the first run installs it from wheels/, without a network.
#
#   ./run.sh "A prompt" [options]     answer it (selfspec generate)
#   ./run.sh [chat] [options]         talk with it
#   ./run.sh VERB [options]           batch, serve, certify, bench, profile or search-plan with this model
#
# PYTHON names another Python, SELFSPEC_VENV another place than .venv beside this file.
set -eu
here=$(dirname -- "$(readlink -f -- "$0")")
venv=${SELFSPEC_VENV:-$here/.venv}
case $venv in /*) ;; *) venv=$PWD/$venv ;; esac
made=
if [ -r "$venv/ready" ]; then read -r made <"$venv/ready" || :; fi
if [ "$made" != "$venv" ] || [ ! -x "$venv/bin/python" ]; then
    python=${PYTHON:-python3}
    if ! command -v "$python" >/dev/null; then
        echo "run.sh: there is no $python; install the Python that README.txt names, or set PYTHON to it" >&2
        exit 2
    fi
    "$python" "$here/install.py" "$venv"
fi
[ $# -gt 0 ] || set -- chat
case $1 in
generate | chat | batch | certify | bench | profile | search-plan | serve | tune)
    verb=$1
    shift
    ;;
*) verb=generate ;;
esac
# what was measured is for the drafter that chooses by it, which is the default
if [ -r "$here/profile.json" ]; then
    case "$verb $*" in
    *" --draft"* | *" --profile"*) ;;
    generate* | chat* | batch*) set -- --profile "$here/profile.json" "$@" ;;
    esac
fi
# the draft of the bundle, whose weights lie in it
if [ -r "$here/draft" ]; then
    case "$verb $* " in
    *" --draft "* | *" --draft="*) ;;
    generate* | chat* | batch* | serve*)
        read -r draft <"$here/draft"
        set -- --draft "$draft" "$@"
        ;;
    esac
fi
exec "$venv/bin/python" -P -m selfspec "$verb" --model "$here/model" "$@"
