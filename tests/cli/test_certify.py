"""``selfspec certify`` end to end: a sound tree passes, and every seeded fault is caught and named."""

from __future__ import annotations

import json

import pytest

from selfspec import context, decode
from selfspec.context import Text
from selfspec.measure import certify as measure
from selfspec.measure import dice, sampled
from selfspec.measure.certificate import Check
from selfspec.sampling import Chance
from selfspec.types import Prefix, Rows, Verdict
from selfspec.verify import verify_chain

PROMPTS = ["abcabcabc", "Name a river.", "1 2 3 1 2 3 1 2", "xyxy"]


@pytest.fixture
def certify(call, tiny, tmp_path, monkeypatch):
    """Run it on the tiny model, without the toy chain; gives click's result and the certificate."""
    monkeypatch.setattr(measure, "toy_law_check", lambda _: Check("toy law", None, "left out here"))
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(PROMPTS))

    def run(*args, runtime="torch"):
        out = tmp_path / "certificate.json"
        result = call("certify", "--model", tiny, "--runtime", runtime, "--prompts", prompts, "--out", out, *args)
        assert result.exit_code in {0, 1}, result.stderr
        return result, json.loads(out.read_text())

    return run


@pytest.fixture
def certify_with_chain(certify, monkeypatch):
    """The same with a fifth of the toy chain's samples."""
    monkeypatch.setattr(measure, "toy_law_check", sampled.toy_law_check)
    monkeypatch.setattr(sampled, "TEXTS", 20)
    return certify


def test_a_sound_tree_passes(certify_with_chain):
    """Guards the whole verb: what is compared, what is written, and that each check really had something to do."""
    result, document = certify_with_chain("--json")
    assert result.exit_code == 0, document
    assert json.loads(result.stdout.splitlines()[-1]) == document
    assert (document["schema"], document["verdict"], document["failed"]) == (1, "pass", [])
    assert document["model"]["name"] == "tiny"
    assert len(document["model"]["fingerprint"]) == 64
    assert set(document["versions"]) == {"selfspec", "python", "numpy", "torch"}
    assert [drafter["name"] for drafter in document["drafters"]] == ["ngram", *["early_exit"] * 3]
    checks = {check["name"]: check for check in document["checks"]}
    assert list(checks) == ["rows", "greedy", "cache", "coupled", "processors", "model law", "toy law"]
    assert checks["greedy"]["texts"] == checks["greedy"]["equal"] == checks["cache"]["caches"] == 16
    drafts = [counts for label, counts in checks["greedy"]["drafts"].items() if label.startswith("early_exit")]
    assert all(counts["drafted"] > counts["accepted"] > 0 for counts in drafts)
    assert len(drafts) == 3
    assert checks["toy law"]["control_seen"]
    assert all(one["distance"] < 1e-12 < 0.1 < one["control"] for one in checks["model law"]["prompts"])
    assert sum(check["seconds"] for check in checks.values()) > 0


def test_a_row_invariant_runtime_is_held_to_equality(certify):
    """Guards the native core's claim: rows are equal to the last bit, and no near-tie excuses anything."""
    result, document = certify(runtime="cpu")
    assert result.exit_code == 0, document
    rows = next(check for check in document["checks"] if check["name"] == "rows")
    assert rows["row_invariance_claimed"]
    assert document["runtime"] == "cpu"


def test_people_read_a_few_lines(certify):
    """Guards the page: a line per drafter and check, and the verdict in words; progress goes to stderr."""
    result, _ = certify("--draft", "early_exit", "--exit-layer", "2", "--max-new-tokens", "3")
    lines = result.stdout.splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        *("model", "machine", "texts", "drafter"),
        *("rows", "greedy", "cache", "coupled", "processors", "model law", "toy law", "verdict"),
    ]
    assert lines[3].endswith("early_exit exit 2/4 γ 4")
    assert lines[-1].endswith("pass: speculation changes nothing here")
    assert "greedy: 4 texts with early_exit exit 2/4 γ 4" in result.stderr.splitlines()


# -- seeded faults ----------------------------------------------------------------------------------------


def takes_one_more(draft, target, chance, ends=lambda _: False):
    """A verifier that keeps the first rejected token."""
    verdict = verify_chain(draft, target, chance, ends)
    if verdict.bonus is None or verdict.accepted == len(draft):
        return verdict
    more = verdict.accepted + 1
    return Verdict(more, None if ends(draft.tokens[more - 1]) else chance.pick(target(more)))


def forgives(draft, target, chance, ends=lambda _: False):
    """A verifier whose ratio test is too kind by a fifth; greedy texts never see it."""
    if draft.laws is None:
        return verify_chain(draft, target, chance, ends)
    kind = type(
        "Kind", (), {"accept": lambda _, p: chance.accept(1.2 * p), "pick": lambda _, law: chance.pick(law)}
    )
    return verify_chain(draft, target, kind(), ends)


def one_prefix_for_the_block(self, _draft):
    return Prefix(list(self.tokens), self.prompt_length)


def all_rows_at_once(text, draft, rows):
    """Processors run over every row of the block, before anything is verified."""
    laws = [text.law(rows[row], draft.before(row)) for row in range(len(draft) + 1)]
    return lambda row: laws[row]


def first_row_only(text, draft, rows):
    """Processors run once per block: the other rows keep their logits."""

    def law(row):
        return (text.draft_law if row else text.law)(rows[row], draft.before(row))

    return law


class Shifted:
    """After a rejection the rows of the next round are written one cell off."""

    def __init__(self):
        self.off = set()
        self.rows, self.commit = context._rows, context.Context.commit

    def shifted(self, texts, drafts):
        rows = self.rows(texts, drafts)
        off = int(texts[0] in self.off)
        return Rows(rows.slots, rows.positions + off, None if rows.lineage is None else rows.lineage + off)

    def committed(self):
        def commit(own, text, draft, verdict):
            done = self.commit(own, text, draft, verdict)
            (self.off.add if verdict.accepted < len(draft.widths) else self.off.discard)(text)
            return done

        return commit


@pytest.mark.parametrize(
    ("patches", "named"),
    [
        ({"verify_chain": takes_one_more, "verify_block": takes_one_more}, {"greedy", "coupled", "toy law"}),
        ({"verify_chain": forgives, "verify_block": forgives}, {"model law", "toy law"}),
    ],
    ids=["one more", "kind"],
)
def test_a_verifier_that_accepts_too_much_is_caught(certify_with_chain, monkeypatch, patches, named):
    """Guards against the fault that costs most: tokens that the target would not have written."""
    for name, broken in patches.items():
        monkeypatch.setattr(decode, name, broken)
    result, document = certify_with_chain()
    assert result.exit_code == 1
    assert named <= set(document["failed"])
    assert document["verdict"] == "fail"
    assert "greedy" in document["failed"] or patches["verify_chain"] is forgives
    assert all(name in result.stdout.splitlines()[-1] for name in document["failed"])
    if "greedy" in named:
        greedy = next(check for check in document["checks"] if check["name"] == "greedy")
        bug = greedy["divergences"][0]
        assert bug["kind"] == "bug"
        assert bug["plain_token"] != bug["draft_token"]
        assert bug["gap"] > 2 * bug["noise"] > 0


@pytest.mark.parametrize("broken", [one_prefix_for_the_block, all_rows_at_once, first_row_only])
def test_a_processor_per_block_is_caught(certify, monkeypatch, broken):
    """Guards LayerSkip's bug, and callables that see rows which plain decoding never computes."""
    if broken is one_prefix_for_the_block:
        monkeypatch.setattr(Text, "prefix", broken)
    else:
        monkeypatch.setattr(decode, "_target", broken)
    result, document = certify()
    assert result.exit_code == 1
    assert "processors" in document["failed"]
    assert "greedy" not in document["failed"]
    found = next(check for check in document["checks"] if check["name"] == "processors")
    assert found["wrong_calls"]


def test_a_cache_one_position_off_is_caught(certify, monkeypatch):
    """Guards a fault that greedy texts may survive."""
    fault = Shifted()
    monkeypatch.setattr(context, "_rows", fault.shifted)
    monkeypatch.setattr(context.Context, "commit", fault.committed())
    result, document = certify()
    assert result.exit_code == 1
    assert "cache" in document["failed"]
    found = next(check for check in document["checks"] if check["name"] == "cache")
    assert found["wrong"]
    assert found["largest_difference"] > 100 * found["limit"]


def test_a_control_that_is_not_caught_fails_the_check(monkeypatch):
    """Guards the statistics: with a control that is sound, the test could not have seen anything."""
    monkeypatch.setattr(sampled, "TEXTS", 10)
    monkeypatch.setattr(dice.KindChance, "accept", Chance.accept)
    check = sampled.toy_law_check(0)
    assert check.passed is False
    assert "no power" in check.summary


# -- the user's mistakes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--gamma", "2"], "--gamma is for one drafter; name it with --draft"),
        (["--draft", "plain"], "plain with γ 0 drafts nothing"),
        (["--draft", "ngram", "--exit-layer", "3"], "has no --exit-layer"),
        (["--draft", "early_exit", "--exit-layer", "4"], "exit layer is 4"),
        (["--max-new-tokens", "1"], "max_new_tokens is 1; it must be at least 2"),
        (["--seed", "-1"], "seed is -1"),
        (["--out", "no/such/folder/c.json"], "cannot be written"),
        (["--out", "."], "is a folder"),
        (["--prompts", "no such file"], "cannot be read"),
        (["--temperature", "1"], "No such option"),
    ],
)
def test_mistakes_are_one_line(refused, tiny, arguments, says):
    """Guards the exit code 2, before minutes of work."""
    assert says in refused("certify", "--model", tiny, *arguments)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        ('{"prompt": "a"}\nb', "line 2 of"),
        ('{"text": "a"}', "must be an object with one of prompt, turns, messages"),
        ('{"prompt": "a", "turns": ["b"]}', "must be an object with one of"),
        ('{"prompt": " "}', "prompt in line 1"),
        ('{"turns": []}', "turns in line 1"),
        ('{"messages": "a"}', "must be a list"),
        ('{"messages": [{"role": "user"}]}', "content"),
    ],
)
def test_prompt_files_that_are_wrong(refused, tiny, tmp_path, text, says):
    """Guards the reader of prompts: the line is named."""
    file = tmp_path / "p.jsonl"
    file.write_text(text)
    assert says in refused("certify", "--model", tiny, "--prompts", file)


def test_prompt_files_of_each_kind(tmp_path):
    """Guards what a prompt file may be."""
    from selfspec.cli.prompts import read_prompts

    file = tmp_path / "prompts"
    file.write_text("one\n\ntwo\u2028{x}\n")
    assert read_prompts(str(file)) == [{"prompt": "one"}, {"prompt": "two\u2028{x}"}]
    message = {"role": "user", "content": "c"}
    entries = [{"prompt": "a"}, {"turns": ["b", "later"], "task": "qa"}, {"messages": [message]}]
    file.write_text("\n".join(map(json.dumps, entries)))
    assert read_prompts(str(file)) == [{"prompt": "a"}, {"prompt": "b"}, {"messages": [message]}]


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    """Guards --out: a whole certificate or none."""
    from selfspec.documents import write_whole

    monkeypatch.setattr(type(tmp_path), "replace", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_whole(tmp_path / "c.json", '{"a": 1}')
    assert list(tmp_path.iterdir()) == []


def test_a_drafter_that_opens_weights_of_its_own_can_be_certified(certify):
    """Guards the way from the certificate to the engine: the lighter model is packed, drafts, and is named."""
    _, document = certify("--draft", "quantized", "--bits", "16", "--max-new-tokens", "4", runtime="cpu")
    assert (document["failed"], document["drafters"][0]["plan"]) == ([], "int8")
    (counts,) = next(check for check in document["checks"] if check["name"] == "greedy")["drafts"].values()
    assert counts["accepted"] > 0
