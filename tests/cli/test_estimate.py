"""The cost model on the command line."""

import json

import pytest


def estimate(call, line):
    result = call("estimate", *line.split(), "--json")
    assert result.exit_code == 0, result.stderr
    assert len(result.stdout.splitlines()) == 1
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("line", "tokens", "gain"),
    [
        ("--layers 32 --exit 8 --alpha 0.7 --gamma 4", 2.77, 1.39),
        ("--layers 32 --exit 4 --alpha 0.7 --gamma 4", 2.77, 1.85),
        ("--layers 32 --exit 4 --alpha 0.65 --gamma 4", 2.53, 1.68),
        ("--c 0.1 --alpha 0.78 --gamma 4", 3.23, 2.31),
        ("--c 0 --alpha 0.8 --gamma 5", 3.69, 3.69),
    ],
)
def test_the_known_figures(call, line, tokens, gain):
    """Guards the wiring of the flags to the formulas."""
    found = estimate(call, line)
    assert (round(found["expected_tokens"], 2), round(found["speedup"], 2)) == (tokens, gain)


def test_the_page_shows_the_same_figures(call):
    """Guards the text that people read, which no JSON test sees."""
    result = call("estimate", "--layers", "32", "--exit", "8", "--alpha", "0.7")
    assert result.exit_code == 0
    words = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert {"tokens per round 2.77", "speedup 1.39x", "ceiling 3.33x", "best γ 2 (1.46x)"} <= set(words)
    assert words[-11:][0] == "0 1.00 1.00x"
    assert words[-11:][4] == "4 2.77 1.39x"
    assert words[-1].startswith("10 ")


def test_a_perfect_draft_has_no_ceiling(call):
    """Guards JSON against Infinity, which parsers refuse."""
    found = estimate(call, "--c 0.5 --alpha 1 --gamma 4")
    assert found["ceiling"] is None
    assert found["expected_tokens"] == 5.0
    assert "none" in call("estimate", "--c", "0.5", "--alpha", "1").stdout


def test_c_alone_shares_nothing_and_layers_bring_the_share_back(call):
    """Guards f: a measured c says what a draft step costs, not what verification may leave out."""
    alone = estimate(call, "--c 0.3 --alpha 0.7 --v 1.5")
    assert (alone["c"], alone["f"]) == (0.3, 0.0)
    both = estimate(call, "--c 0.3 --alpha 0.7 --v 1.5 --layers 32 --exit 8")
    assert (both["c"], both["f"]) == (0.3, 0.25)
    assert both["speedup"] > alone["speedup"]
    headed = estimate(call, "--layers 32 --exit 8 --alpha 0.7 --head 0.2")
    assert (headed["c"], headed["f"]) == pytest.approx((0.4, 0.2))


def test_listed_costs_limit_the_table(call):
    """Guards against rows whose cost nobody measured."""
    found = estimate(call, "--c 0.1 --alpha 0.9 --gamma 2 --v 1,1.1,1.2,1.3")
    assert [row["gamma"] for row in found["table"]] == [0, 1, 2, 3]
    assert found["best_gamma"] == 3
    assert found["v"] == [1.0, 1.1, 1.2, 1.3]


def test_a_mixture_in_a_batch(call):
    """Guards the wiring of what passes read: v falls with the batch, and fewer experts are a draft of their own."""
    mixture = "--experts 64 --per-token 8 --expert-share 0.8 --alpha 0.6"
    alone, many = (estimate(call, f"{mixture} --c 0 --batch {batch}") for batch in (1, 16))
    assert alone["v"][1] == pytest.approx(0.2 + 0.8 * 1.875)
    assert (alone["best_gamma"], alone["best_speedup"]) == (0, 1.0)
    assert many["best_speedup"] > 2.0
    assert len(many["table"]) == 11
    half = estimate(call, f"{mixture} --draft-experts 4")
    assert half["c"] == pytest.approx(0.6)
    dense = estimate(call, "--c 0 --alpha 0.6 --batch 4 --ridge 16")
    assert dense["v"][:5] == [1.0, 1.0, 1.0, 1.0, 1.25]
    assert (
        "v 1, 1, 1, 1, 1.25"
        in call("estimate", *["--c", "0", "--alpha", "0.6", "--batch", "4", "--ridge", "16"]).stdout
    )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--alpha 0.5 --c 0 --experts 8", "per-token is missing; a mixture needs experts, per-token"),
        ("--alpha 0.5 --c 0 --experts 8 --per-token 9 --expert-share 0.5", "per_token is 9; of 8 experts"),
        ("--alpha 0.5 --c 0 --experts 8 --per-token 2 --expert-share 1.5", "expert share is 1.5"),
        ("--alpha 0.5 --c 0 --experts 0 --per-token 2 --expert-share 0.5", "experts is 0"),
        ("--alpha 0.5 --c 0 --batch 0", "batch is 0"),
        ("--alpha 0.5 --c 0 --ridge nan", "ridge is nan; it must be at least 1 row"),
        ("--alpha 0.5 --c 0 --ridge 4 --v 1.2", "v says what rows cost; leave it out"),
        ("--alpha 0.5 --draft-experts 1", "draft-experts is a draft of its own"),
        (
            "--alpha 0.5 --experts 8 --per-token 2 --expert-share 0.5 --draft-experts 3",
            "draft experts is 3; each token has 2",
        ),
        ("--c 0.1", "Missing option '--alpha'"),
        ("--alpha 0.5", "give layers and exit, or c"),
        ("--alpha 0.5 --layers 32", "layers is given without exit"),
        ("--alpha 0.5 --exit 8", "exit is given without layers"),
        ("--alpha 0.5 --c 0.1 --exit 8", "exit is given without layers"),
        ("--alpha 0.5 --c 0.1 --head 0.2", "head says nothing"),
        ("--alpha 0.5 --layers 32 --exit 0", "exit layer is 0; with 32 layers"),
        ("--alpha 0.5 --layers 32 --exit 32", "exit layer is 32"),
        ("--alpha 0.5 --layers 32 --exit 8 --head 1", "head is 1.0"),
        ("--alpha 1.5 --c 0.1", "alpha is 1.5"),
        ("--alpha nan --c 0.1", "alpha is nan"),
        ("--alpha 0.5 --c -1", "c is -1.0"),
        ("--alpha 0.5 --c 0.1 --gamma -1", "gamma is -1"),
        ("--alpha 0.5 --c 0.1 --gamma 65", "gamma is 65"),
        ("--alpha 0.5 --c 0.1 --gamma four", "'four' is not a valid integer"),
        ("--alpha 0.5 --c 0.1 --v 1,1.1", "v has 2 values"),
        ("--alpha 0.5 --c 0.1 --v 1,,2", "v is '1,,2'; it must be a number"),
        ("--alpha 0.5 --c 0.1 --v 1.2,1.3,1.4,1.5,1.6", "v(1) is 1.2; it must be 1"),
        ("--alpha 0.5 --c 0.1 --vv 1", "No such option"),
        ("--alpha 0.5 --c 0.1 extra", "unexpected extra argument"),
    ],
)
@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_wrong_values_are_one_line(refused, line, says, as_json):
    """Guards the exit code and the single line, with --json as well, where nothing may reach stdout."""
    assert says in refused("estimate", *line.split(), *as_json)
