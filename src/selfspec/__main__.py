"""``python -m selfspec``: the command line where its script is not on the path."""

from selfspec.cli.main import run

if __name__ == "__main__":
    run()
