"""Sizes of a model, from its configuration alone."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_folder import CONFIG

D, FF, V, L, KV = 32, 64, 259, 4, 16
LAYER = 2 * D * D + 2 * D * KV + 3 * D * FF + 2 * D
HEAD = V * D + D


@pytest.fixture
def folder(tmp_path):
    """A configuration without weights."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def document(call, *args):
    result = call("info", *args, "--json")
    assert result.exit_code == 0, result.stderr
    assert len(result.stdout.splitlines()) == 1
    return json.loads(result.stdout)


def test_sizes_are_counted(call, folder):
    """Guards the counts against a formula that forgets the tied head or the final norm."""
    found = document(call, folder)
    assert found["parameters"] == L * LAYER + HEAD
    assert found["bytes"] == {
        "layer": 4 * LAYER,
        "head": 4 * HEAD,
        "embedding": 4 * V * D,
        "total": 4 * (L * LAYER + HEAD),
    }
    assert found["kv_bytes_per_token"] == 4 * 2 * L * KV
    assert (found["family"], found["layers"], found["context_length"]) == ("llama", 4, 4096)


def test_states_are_stated_beside_the_cache(call, tmp_path, folder):
    """Guards the price of recurrent layers: what a text holds, and what of it serves to roll drafts back."""
    assert (document(call, folder)["state_bytes"], document(call, folder)["rollback_bytes"]) == (0, 0)
    types = ["conv", "full_attention", "conv", "conv"]
    changes = {"architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "layer_types": types}
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | changes))
    found = document(call, tmp_path)
    assert found["kv_bytes_per_token"] == 4 * 2 * KV
    assert (found["state_bytes"], found["rollback_bytes"]) == (3 * 66 * D * 4, 3 * 64 * D * 4)
    assert "25.3 kB per text, 24.6 kB of it to roll drafts back" in call("info", tmp_path).stdout


def test_trained_exits_are_named(call, folder, refused):
    """Guards the note that `train layerskip` leaves: it is shown, and a damaged one is refused."""
    (folder / "exits.json").write_text(json.dumps({"format": 1, "layers": [2, 1], "vocabulary": [3, 5]}))
    assert "2, 1, drafts choose among 2 tokens" in call("info", folder).stdout
    assert document(call, folder)["trained_exits"] == {"layers": [2, 1], "vocabulary": 2}
    (folder / "exits.json").write_text("{}x")
    assert "exits.json" in refused("info", folder)


def test_c_counts_the_head(call, folder):
    """Guards c(k): k/L alone flatters every exit."""
    costs = document(call, folder)["c_by_exit_layer"]
    assert [row["exit_layer"] for row in costs] == [1, 2, 3]
    assert costs[0]["c"] == pytest.approx((LAYER + HEAD) / (L * LAYER + HEAD))


def test_another_precision_scales_the_bytes(call, folder, refused):
    """Guards --dtype."""
    whole, half = document(call, folder), document(call, folder, "--dtype", "bfloat16")
    assert half["dtype"] == "bfloat16"
    assert whole["bytes"]["total"] == 2 * half["bytes"]["total"]
    assert "dtype is 'int3'; it must be one of float64, float32" in refused("info", folder, "--dtype", "int3")


def test_packed_sizes_are_those_of_the_core(call, folder, refused):
    """Guards --bits: blocks of 32 with a scale, rows padded to 16, vectors in float32; and KV in float16."""
    found = document(call, folder, "--bits", "8")
    rows = 272  # of the vocabulary, padded
    head = rows * D // 32 * 34 + 4 * D
    layer = (2 * D * D + 2 * D * KV + 3 * D * FF) // 32 * 34 + 4 * 2 * D
    assert found["bytes"] == {"layer": layer, "head": head, "embedding": head - 4 * D, "total": L * layer + head}
    assert (found["dtype"], found["kv_bytes_per_token"]) == ("int8", 2 * 2 * L * KV)
    assert found["c_by_exit_layer"][0]["c"] == pytest.approx((layer + head) / (L * layer + head))
    assert "bits is 3; it must be one of 4, 8, 16, 32" in refused("info", folder, "--bits", "3")
    assert "leave one out" in refused("info", folder, "--bits", "8", "--dtype", "float32")


def test_of_a_mixture_a_row_reads_its_own_experts(call, tmp_path):
    """Guards c of a mixture on the core: experts that a row does not have are held and not read."""
    values = {
        "architectures": ["MixtralForCausalLM"],
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_local_experts": 8,
        "vocab_size": 64,
    }
    (tmp_path / "config.json").write_text(json.dumps(values))
    found = document(call, tmp_path, "--bits", "8")
    experts, router = 3 * 8 * 32 * 64 // 32 * 34, 16 * 32 * 4  # the router in float32, padded to 16 rows
    layer = (2 * 32 * 32 + 2 * 32 * 16) // 32 * 34 + experts + router + 2 * 32 * 4
    active, head = layer - experts * 6 // 8, found["bytes"]["head"]
    assert found["bytes"]["layer"] == layer
    assert found["c_by_exit_layer"][0]["c"] == pytest.approx((active + head) / (2 * active + head))


def test_buffers_of_a_draft_round(call, folder):
    """Guards the memory that a draft adds: hidden states for an early exit, laws only where it samples."""
    rows = {(row["drafter"], row["sampling"]): row for row in document(call, folder)["draft_buffers"]}
    greedy, sampled = rows["early_exit", "greedy"], rows["early_exit", "sampled"]
    assert greedy["parts"]["hidden = gamma * d"] == greedy["gamma"] * D * 4
    assert sampled["bytes"] - greedy["bytes"] == greedy["gamma"] * V * 8
    assert rows["ngram", "greedy"]["parts"]["hidden = gamma * d"] == 0
    assert not any(name in ("plain", "scripted") for name, _ in rows)


def test_what_drafters_hold_is_counted(call, folder, refused):
    """Guards the honest comparison: the self-draft's zeros beside lighter weights and a second model."""
    found = document(call, folder, "--draft-model", folder, "--draft-bits", "4")
    rows = {(row["drafter"], row["runs"].split()[-1]): row for row in found["drafters"]}
    for name in (("early_exit", "3/4"), ("ngram", "none")):
        assert (rows[name]["weights"], rows[name]["kv_per_token"], rows[name]["keeps"]) == (0, 0, "nothing")
    assert rows["early_exit", "3/4"]["c"] == found["c_by_exit_layer"][2]["c"]
    packed = {bits: document(call, folder, "--bits", bits) for bits in ("8", "4")}
    for bits, other in packed.items():
        row = rows["quantized", f"int{bits}"]
        assert (row["weights"], row["kv_per_token"]) == (other["bytes"]["total"], 0)
        step = 4 * other["bytes"]["layer"] + other["bytes"]["head"]
        assert row["c"] == pytest.approx(step / (4 * (4 * LAYER) + 4 * HEAD))
    second = rows["draft_model", "int4"]
    assert (second["weights"], second["kv_per_token"]) == (packed["4"]["bytes"]["total"], 2 * 2 * L * KV)
    assert second["keeps"] == "a second checkpoint"
    assert rows["clasp", "none"]["c"] is None  # it searches its layers as it writes
    assert "quantized" not in {row["drafter"] for row in packed["4"]["drafters"]}
    assert "what a drafter holds beyond plain decoding" in call("info", folder).stdout
    assert "--draft-bits is for --draft-model" in refused("info", folder, "--draft-bits", "4")


def test_the_page_has_all_tables(call, folder):
    """Guards the text that people read."""
    page = call("info", folder).stdout
    for words in ("45,440", "512 B per token", "c by exit layer k", "extra buffers of a draft round", "gamma * V"):
        assert words in page


@pytest.mark.parametrize("dtype", [[], ["--dtype", "float16"]])
def test_no_torch_is_imported(folder, dtype):
    """Guards the base package, which has no torch."""
    program = (
        "import sys; from selfspec.cli.main import cli\n"
        "try: cli.main(sys.argv[1:])\n"
        "finally: assert 'torch' not in sys.modules"
    )
    command = [sys.executable, "-c", program, "info", str(folder), *dtype]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def test_models_that_cannot_be_read(refused, tmp_path):
    """Guards the errors of the model package on their way to the terminal."""
    assert "there is no folder or file" in refused("info", tmp_path / "missing")
    assert "there is no config.json" in refused("info", tmp_path)
    Path(tmp_path / "config.json").write_text(json.dumps(CONFIG | {"architectures": ["MambaForCausalLM"]}))
    assert "'MambaForCausalLM'" in refused("info", tmp_path, "--json")


@pytest.mark.embedded
def test_the_embedded_model(call):
    """Guards the default model and reading a GGUF's header alone."""
    found = document(call)
    assert (found["layers"], found["hidden_size"], found["vocab_size"]) == (30, 576, 49152)
    assert found["parameters"] == 134_515_008
