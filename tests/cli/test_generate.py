"""One prompt: its sources, its flags, what is printed where, and how it ends."""

import json
import signal

import pytest
from tiny_folder import CONTEXT, write_model

# fmt: off
FIELDS = [
    "text", "token_ids", "prompt_tokens", "finish_reason", "rounds",
    "drafted", "accepted", "acceptance_rate", "mean_accepted_length", "drafted_per_position",
    "accepted_per_position", "tokens_per_second", "decode_tokens_per_second", "ttft_seconds", "seconds",
    "draft_seconds", "draft_row_layers", "verify_row_layers", "prefill_row_layers", "model", "cached_tokens",
    "runtime", "runs_on", "precision", "draft", "plan", "gamma",
    "seed", "kv_bytes", "state_bytes", "rollback_bytes", "buffers", "draft_weight_bytes", "draft_kv_bytes",
    "accepted_prediction_tokens", "rejected_prediction_tokens",
]
# fmt: on
LONG = ["--max-new-tokens", "24", "--ignore-eos"]


@pytest.fixture
def answer(call, tiny):
    """Run `generate --json` on the tiny model; gives the document."""

    def run(*args, text=None):
        result = call("generate", *args, "--model", tiny, "--json", text=text)
        assert result.exit_code == 0, result.stderr
        assert len(result.stdout.splitlines()) == 1
        return json.loads(result.stdout, parse_constant=pytest.fail)

    return run


def test_json_has_every_field_and_nothing_else_is_on_stdout(answer):
    """Guards the contract with scripts, and JSON against NaN."""
    found = answer("hello", *LONG)
    assert sorted(found) == sorted(FIELDS)
    assert len(found["token_ids"]) == 24
    assert found["finish_reason"] == "length"


def test_a_single_token_has_valid_json(answer):
    """Guards rates without a denominator: no rounds, no drafts, no time after the first token."""
    found = answer("hello", "--max-new-tokens", "1")
    assert found["mean_accepted_length"] is None
    assert found["decode_tokens_per_second"] is None


def test_text_goes_to_stdout_and_one_summary_to_stderr(call, tiny, answer):
    """Guards the streamed text: the same as without streaming, and free of remarks."""
    result = call("generate", "hello", "--model", tiny, "--draft", "early_exit", "--gamma", "2", *LONG)
    assert result.exit_code == 0
    assert result.stdout == answer("hello", *LONG)["text"] + "\n"
    (line,) = result.stderr.splitlines()
    assert line.startswith("24 tokens · ")
    assert " rounds · early_exit exit " in line
    assert "/4 γ 2 · float32 on cpu (" in line


def test_plain_decoding_shows_no_acceptance(call, tiny):
    """Guards the summary where nothing was drafted: α does not exist there."""
    result = call("generate", "hello", "--model", tiny, "--draft", "plain", *LONG)
    assert result.exit_code == 0
    assert "α" not in result.stderr
    assert " · τ 1.0 · 23 rounds · plain" in result.stderr


def test_every_drafter_says_the_same_words(answer):
    """Guards the wiring of the drafting flags: lossless means that they change how, never what."""
    plain = answer("hello", "--draft", "plain", *LONG)
    for flags in (
        ["--draft", "early_exit", "--exit-layer", "1", "--gamma", "3", "--confidence", "0.1", "--adaptive"],
        ["--draft", "ngram", "--max-ngram", "3", "--min-ngram", "1", "--no-adaptive"],
    ):
        found = answer("hello", *flags, *LONG)
        assert found["token_ids"] == plain["token_ids"]
        assert found["drafted"] > 0
    assert answer("hello", "--draft", "early_exit", "--exit-layer", "1")["plan"] == "exit 1/4"


def test_sampling_flags_reach_the_sampler(answer):
    """Guards --temperature and --seed: equal seeds repeat a text, other seeds change it."""
    flags = ["--temperature", "1.5", "--top-p", "0.95", "--top-k", "50", *LONG]
    one, again, other = (answer("hello", *flags, "--seed", seed) for seed in ("1", "1", "2"))
    assert one["token_ids"] == again["token_ids"] != other["token_ids"]
    assert one["seed"] == 1


def test_coupled_samples_are_the_same_whoever_drafts(answer):
    """Guards --coupled."""
    flags = ["--temperature", "1.5", "--seed", "1", *LONG]
    plain, drafted, free = (
        answer("hello", *flags, *draft)
        for draft in (
            ["--coupled", "--draft", "plain"],
            ["--coupled", "--draft", "early_exit"],
            ["--draft", "early_exit"],
        )
    )
    assert plain["token_ids"] == drafted["token_ids"] != free["token_ids"]
    assert drafted["drafted"] > 0


def test_stop_may_be_given_twice(answer):
    """Guards repeatable flags: with one value lost the text would run on."""
    text = answer("hello", *LONG)["text"]
    first, second = text[-1], text[len(text) // 2]
    found = answer("hello", "--stop", first, "--stop", second, *LONG)
    cut = min(text.index(first), text.index(second))
    assert found["text"] == text[:cut]
    assert found["finish_reason"] == "stop"


def test_prompt_sources_agree(answer, tmp_path):
    """Guards the final newline of files and pipes, which would change the tokens of the prompt."""
    file = tmp_path / "prompt.txt"
    file.write_bytes("größe ∑\n".encode())
    direct = answer("größe ∑", *LONG)
    assert answer("--prompt-file", file, *LONG)["token_ids"] == direct["token_ids"]
    assert answer("-", *LONG, text="größe ∑\r\n")["token_ids"] == direct["token_ids"]
    assert answer("größe ∑\n", *LONG)["prompt_tokens"] == direct["prompt_tokens"] + 1


def test_the_chat_template_is_used_unless_refused(answer):
    """Guards --no-chat and --system."""
    wrapped = answer("hello", "--max-new-tokens", "1")["prompt_tokens"]
    assert answer("hello", "--max-new-tokens", "1", "--no-chat")["prompt_tokens"] == len("hello")
    assert answer("hello", "--max-new-tokens", "1", "--system", "Be brief.")["prompt_tokens"] > wrapped + 9


def test_dtype_is_passed_on(answer):
    """Guards --dtype: the precision that ran is the one that was asked for."""
    assert answer("hello", "--dtype", "float64", "--device", "cpu")["precision"] == "float64"


def test_show_drafts_marks_without_changing_the_text(call, tiny):
    """Guards the marks: taken out, the text is what it was; the legend stays out of stdout."""
    flags = ["--model", tiny, "--draft", "early_exit", "--exit-layer", "3", *LONG]
    plain = call("generate", "hello", *flags)
    marked = call("generate", "hello", *flags, "--show-drafts")
    assert marked.exit_code == 0
    assert "⟦" in marked.stdout
    assert marked.stdout.replace("⟦", "").replace("⟧", "") == plain.stdout
    legend, _ = marked.stderr.splitlines()
    assert "accepted draft" in legend
    assert "\x1b" not in marked.stdout + marked.stderr


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["hello", "--gamma", "-1"], "gamma is -1; it must be 0"),
        (["hello", "--gamma", "65"], "gamma is 65"),
        (["hello", "--top-p", "1.5"], "top_p is 1.5; it must be above 0 and at most 1"),
        (["hello", "--top-p", "nan"], "top_p is nan"),
        (["hello", "--top-k", "-1"], "top_k is -1"),
        (["hello", "--temperature", "-0.1"], "temperature is -0.1"),
        (["hello", "--temperature", "inf"], "temperature is inf"),
        (["hello", "--seed", "-1"], "seed is -1"),
        (["hello", "--max-new-tokens", "0"], "max_new_tokens is 0; it must be at least 1"),
        (["hello", "--stop", ""], "stop is ('',)"),
        (["hello", "--confidence", "2"], "confidence is 2.0"),
        (["hello", "--dtype", "int3"], "dtype is 'int3'; it must be one of"),
        (["hello", "--device", "abacus"], "device 'abacus' cannot be used"),
        (["hello", "--draft", "oracle"], "drafter is 'oracle'; it must be one of"),
        (["hello", "--draft", "scripted"], "the scripted drafter needs script="),
        (["hello", "--exit-layer", "3"], "drafter 'auto' has no --exit-layer; it has --gamma,"),
        (["hello", "--exit-layer", "3"], "early_exit would have --exit-layer: add --draft early_exit"),
        (["hello", "--draft", "plain", "--max-ngram", "3"], "drafter 'plain' has no --max-ngram; it has"),
        (["hello", "--draft", "early_exit", "--exit-layer", "0"], "exit layer is 0; this model has 4 layers"),
        (["hello", "--draft", "early_exit", "--exit-layer", "4"], "exit layer is 4; this model has 4 layers"),
        (["hello", "--draft", "early_exit", "--exit-layer", "-1"], "exit layer is -1"),
        (["hello", "--draft", "ngram", "--min-ngram", "9"], "min_ngram is 9 and max_ngram 5"),
        ([""], "the prompt is empty"),
        ([" \n"], "the prompt is empty"),
        ([], "no prompt; give one of PROMPT, - (stdin) or --prompt-file FILE"),
        (["hello", "--prompt-file", "x"], "two prompts; give one of"),
        (["-", "--prompt-file", "x"], "two prompts; give one of"),
        (["--prompt-file", "missing.txt"], "'missing.txt' cannot be read: No such file or directory"),
        (["--prompt-file", "."], "'.' cannot be read: Is a directory"),
        (["hello", "--no-chat", "--system", "Be brief."], "system message needs the chat template"),
        (["x" * CONTEXT], f"this model's context is {CONTEXT}"),
        (["\ud800"], "lone surrogates"),
    ],
)
def test_mistakes_are_one_line(refused, tiny, flags, says):
    """Guards every mistake that a user can make here: one line, exit code 2, nothing on stdout."""
    assert says in refused("generate", *flags, "--model", tiny)


def test_json_and_marks_exclude_each_other(refused, tiny):
    """Guards against a flag that is silently ignored."""
    assert "give one of them" in refused("generate", "hello", "--model", tiny, "--json", "--show-drafts")


def test_what_is_not_utf8_is_refused(refused, tiny, tmp_path):
    """Guards the decoding of bytes, which raises an error of its own."""
    file = tmp_path / "latin1.txt"
    file.write_bytes("größe".encode("latin-1"))
    assert "is not UTF-8: byte 2 is 0xf6" in refused("generate", "--prompt-file", file, "--model", tiny)
    assert "the prompt on stdin is not UTF-8" in refused("generate", "-", "--model", tiny, text=b"gr\xf6")


def test_models_that_cannot_be_used(refused, tmp_path):
    """Guards errors of the model package on their way to the terminal."""
    missing = tmp_path / "missing"
    assert "there is no folder or file" in refused("generate", "hello", "--model", missing)
    other = write_model(tmp_path / "other")
    config = tmp_path / "other" / "config.json"
    config.write_text(json.dumps({"architectures": ["MambaForCausalLM"], "model_type": "mamba"}))
    assert "'MambaForCausalLM' in" in refused("generate", "hello", "--model", other, "--json")
    config.write_text("{")
    assert "not valid JSON" in refused("generate", "hello", "--model", other)


def test_ctrl_c_ends_with_130_and_one_line(spawn, tiny):
    """Guards the interrupt in mid-stream: what was written stays, and there is no traceback."""
    process = spawn("generate", "hello", "--model", tiny, "--max-new-tokens", "4000", "--ignore-eos")
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.decode() == "selfspec: interrupted\n"
    assert rest.endswith(b"\n")


def test_a_closed_pipe_ends_quietly(spawn, tiny):
    """Guards `| head -1`: the reader leaves, and nothing is said about it, not even at the exit."""
    process = spawn("generate", "hello", "--model", tiny, "--max-new-tokens", "4000", "--ignore-eos")
    assert process.stdout.read(1)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 141


@pytest.mark.embedded
def test_the_embedded_model_answers_by_default(call):
    """Guards the quick start: no --model, and a sensible answer."""
    result = call("generate", "Name three primary colours.", "--max-new-tokens", "40")
    assert result.exit_code == 0, result.stderr
    assert "Red" in result.stdout


def test_drafters_with_weights_of_their_own(call, refused, tiny):
    """Guards the way from flags to drafters, and the line that says what they cost."""
    short = ("--model", tiny, "--bits", "16", "--max-new-tokens", "12", "--ignore-eos")
    want = call("generate", "hello", *short, "--draft", "plain").stdout
    for flags, said in (
        (("--draft", "quantized", "--draft-bits", "4"), "quantized int4 γ 4 · + "),
        (("--draft", "draft_model", "--draft-model", tiny, "--draft-bits", "8"), "draft_model tiny int8 γ 4 · + "),
    ):
        result = call("generate", "hello", *short, *flags)
        assert result.exit_code == 0, result.stderr
        assert result.stdout == want
        assert said in result.stderr
        assert " weights, " in result.stderr
    assert "draft_model is None; it must name" in refused("generate", "hello", "--draft", "draft_model")
    assert "has no --draft-model" in refused("generate", "hello", "--draft", "quantized", "--draft-model", tiny)


@pytest.mark.parametrize("flag", ["--num-beams", "--penalty-alpha", "--num-return-sequences"])
def test_modes_that_cannot_be_verified_are_refused_before_the_model_is_loaded(refused, call, flag):
    """Guards one clear line instead of "no such option"; help does not list them."""
    line = refused("generate", "hello", "--model", "no-such-model", flag, "2")
    assert f"{flag.strip('-').replace('-', '_')} is not offered: " in line
    assert flag not in call("generate", "--help").stdout


# -- the chat template ------------------------------------------------------------------------------------


@pytest.fixture
def with_tools(tmp_path):
    """The folder of a model whose template takes tools and an option, and a file of tools."""
    model = write_model(tmp_path / "model")
    template = "{% if tools %}{{ tools | tojson }}{% endif %}{{ quick }}{{ messages[-1].content }}"
    (tmp_path / "model" / "chat_template.jinja").write_text(template)
    (tmp_path / "tools.json").write_text('[{"name": "add"}]')
    return ["--model", model, "--json", "--max-new-tokens", "1"], tmp_path


def test_tools_and_chat_options(call, with_tools):
    """Guards the flags: what they say is in the prompt."""
    base, folder = with_tools

    def tokens(*flags):
        result = call("generate", "hi", *base, *flags)
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)["prompt_tokens"]

    assert tokens() == len("hi")
    assert tokens("--tools", folder / "tools.json") == len('[{"name": "add"}]hi')
    assert tokens("--chat-option", "quick=false") == len("Falsehi") == tokens("--chat-option", "quick=False")
    assert tokens("--chat-option", "quick=very") == len("veryhi")
    (folder / "own.jinja").write_text("own {{ messages[0].content }}\n")
    assert tokens("--chat-template", folder / "own.jinja") == len("own hi")


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--tools", "none.json"], "none.json"),
        (["--tools", "{}/model/chat_template.jinja"], "is no JSON"),
        (["--tools", "{}/number.json"], "list of JSON schemas"),
        (["--chat-option", "quick"], "NAME=VALUE"),
        (["--chat-option", "slow=1"], "does not read; it reads quick"),
        (["--chat-template", "rag"], "this model has default"),
        (["--tools", "{}/tools.json", "--no-chat"], "tools needs the chat template"),
    ],
)
def test_wrong_flags_for_the_template(refused, with_tools, flags, part):
    """Guards one line for each."""
    base, folder = with_tools
    (folder / "number.json").write_text("3")
    assert part in refused("generate", "hi", *base, *(flag.format(folder) for flag in flags))


def test_explain_shows_what_was_decided(call, refused, tiny):
    """Guards --explain: the table on stderr, in the document, and refused where nothing is decided."""
    flags = ["generate", "abcabcabc", "--model", tiny, "--max-new-tokens", "24", "--draft", "auto"]
    shown = call(*flags, "--explain").stderr
    for word in ("plain", "suffix", "early_exit:exit_layer=2", "α by position", "speculation "):
        assert word in shown
    found = json.loads(call(*flags, "--explain", "--json").stdout)["explanation"]
    assert [choice["drafter"] for choice in found["choices"]][:2] == ["plain", "suffix"]
    assert sum(choice["rounds"] for choice in found["choices"]) == found["rounds"]
    assert call(*flags[:-2], "--explain").stderr.count("suffix") == 1  # the default, too
    assert "suffix" in call(*flags[:-1], "auto:candidates=(suffix,ngram)", "--explain").stderr
    assert "add --draft auto" in refused(*flags[:-2], "--draft", "ngram", "--explain")
    assert "explanation" not in json.loads(call(*flags, "--json").stdout)
