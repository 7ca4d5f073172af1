"""The other side of a rival in a process of its own: loads a model once, then answers one line with one line.

Run as a script by the rival's own Python, it needs nothing of selfspec. Its only argument is a JSON object:
``rival``, ``model`` (a path), ``threads``, ``context`` (most tokens of a text), ``options``. It writes, on stdout,

    {"ready": {"version": ..., ...}}      or {"missing": why} or {"error": why}, and ends

and then, for every line {"prompt": [ids], "max_new_tokens", "temperature", "seed", "eos": [ids]},

    {"first": true}                       when the first token is there, if the rival tells
    {"tokens": [ids], "peak_bytes": n}    or {"error": why}

Whoever asks takes the times: there is one clock. An empty ``eos`` means to go on to the last token.
"""

import json
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

Request = dict[str, Any]
Generate = Callable[[Request, Callable[[], None]], list[int]]
Opened = tuple[dict[str, str], Generate]


def open_llama_cpp(settings: Request) -> Opened:
    """llama-cpp-python, with its prompt look-up if ``options`` has gamma."""
    from llama_cpp import Llama

    options: dict[str, Any] = {}
    if "gamma" in settings["options"]:
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        chosen = settings["options"]
        options["draft_model"] = LlamaPromptLookupDecoding(chosen["ngram"], chosen["gamma"])
    threads = settings["threads"]
    llama = Llama(
        settings["model"],
        n_ctx=settings["context"],
        n_threads=threads,
        n_threads_batch=threads,
        verbose=False,
        **options,
    )

    def generate(request: Request, first: Callable[[], None]) -> list[int]:
        llama.reset()  # or it would keep the prompt of the last call, and prefill nothing
        llama.set_seed(request["seed"])
        tokens: list[int] = []
        stream = llama.generate(
            request["prompt"], temp=request["temperature"], top_k=0, top_p=1.0, min_p=0.0, repeat_penalty=1.0
        )
        for token in stream:
            if not tokens:
                first()
            tokens.append(int(token))
            if len(tokens) == request["max_new_tokens"] or token in request["eos"]:
                break
        stream.close()
        return tokens

    return {"version": version("llama-cpp-python"), "precision": "of the GGUF file"}, generate


def open_onnxruntime_genai(settings: Request) -> Opened:
    """ONNX Runtime GenAI on the folder that its model builder wrote; threads are those of its config."""
    import onnxruntime_genai as og

    model = og.Model(settings["model"])

    def generate(request: Request, first: Callable[[], None]) -> list[int]:
        params = og.GeneratorParams(model)
        search = {"max_length": len(request["prompt"]) + request["max_new_tokens"], "do_sample": False}
        if request["temperature"] > 0.0:
            search.update(do_sample=True, temperature=request["temperature"], top_k=0, top_p=1.0)
            search["random_seed"] = request["seed"]
        params.set_search_options(**search)
        generator = og.Generator(model, params)
        generator.append_tokens(request["prompt"])
        tokens: list[int] = []
        while not generator.is_done():
            generator.generate_next_token()
            if not tokens:
                first()
            tokens.append(int(generator.get_next_tokens()[0]))
            if len(tokens) == request["max_new_tokens"] or tokens[-1] in request["eos"]:
                break
        if not request["eos"] and len(tokens) < request["max_new_tokens"]:
            raise RuntimeError("ONNX Runtime GenAI ends at end-of-text and cannot be told to go on")
        return tokens

    return {"version": version("onnxruntime-genai"), "precision": "of the ONNX folder"}, generate


def open_openvino_genai(settings: Request) -> Opened:
    """OpenVINO GenAI on an OpenVINO folder or a GGUF file, on the CPU."""
    import numpy as np
    import openvino as ov
    import openvino_genai as genai

    class First(genai.StreamerBase):  # type: ignore[misc]  # pragma: no cover
        def __init__(self, first: Callable[[], None]) -> None:
            super().__init__()
            self.first, self.is_told = first, False

        def write(self, _token: Any) -> Any:
            if not self.is_told:
                self.is_told = True
                self.first()
            return genai.StreamingStatus.RUNNING

        def end(self) -> None:
            pass

    pipe = genai.LLMPipeline(settings["model"], "CPU", INFERENCE_NUM_THREADS=settings["threads"])

    def generate(request: Request, first: Callable[[], None]) -> list[int]:
        config = genai.GenerationConfig()
        config.max_new_tokens = request["max_new_tokens"]
        config.do_sample = request["temperature"] > 0.0
        if config.do_sample:
            config.temperature, config.rng_seed = request["temperature"], request["seed"]
            config.top_p, config.top_k = 1.0, 2**31
        config.ignore_eos = not request["eos"]
        config.stop_token_ids = set(request["eos"])
        ids = np.array([request["prompt"]], dtype=np.int64)
        inputs = genai.TokenizedInputs(ov.Tensor(ids), ov.Tensor(np.ones_like(ids)))
        return [int(token) for token in pipe.generate(inputs, config, First(first)).tokens[0]]

    return {"version": version("openvino-genai"), "precision": "of the model file"}, generate


def open_vllm(settings: Request) -> Opened:
    """vLLM, one text at a time; its offline interface does not tell when the first token is there."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        settings["model"],
        dtype=settings["dtype"],
        max_model_len=settings["context"],
        enable_prefix_caching=False,  # or a repeated prompt would prefill nothing
    )

    def generate(request: Request, _first: Callable[[], None]) -> list[int]:
        params = SamplingParams(
            temperature=request["temperature"],
            max_tokens=request["max_new_tokens"],
            seed=request["seed"],
            ignore_eos=not request["eos"],
            stop_token_ids=request["eos"],
        )
        done = llm.generate({"prompt_token_ids": request["prompt"]}, params, use_tqdm=False)
        return list(done[0].outputs[0].token_ids)

    return {"version": version("vllm"), "precision": settings["dtype"]}, generate


OPENERS: dict[str, Callable[[Request], Opened]] = {
    "llama.cpp": open_llama_cpp,
    "onnxruntime-genai": open_onnxruntime_genai,
    "openvino-genai": open_openvino_genai,
    "vllm": open_vllm,
}


def peak_bytes() -> int:
    """The most memory this process has had."""
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def serve(opener: Callable[[Request], Opened], settings: Request, lines: Any, say: Callable[[Any], None]) -> None:
    """Open the rival and answer ``lines`` until they end."""
    try:
        about, generate = opener(settings)
    except ImportError as error:
        say({"missing": f"{error}"})
        return
    except Exception as error:  # noqa: BLE001 (whatever happens is reported)
        say({"error": f"{type(error).__name__}: {error}"})
        return
    say({"ready": about})
    for line in lines:
        try:
            tokens = generate(json.loads(line), lambda: say({"first": True}))
            say({"tokens": tokens, "peak_bytes": peak_bytes()})
        except Exception as error:  # noqa: BLE001
            say({"error": f"{type(error).__name__}: {error}"})


def main() -> None:
    """Serve on stdin and stdout; what libraries print on stdout goes to stderr instead."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(value: Any) -> None:
        out.write(json.dumps(value) + "\n")
        out.flush()

    settings = json.loads(sys.argv[1])
    serve(OPENERS[settings["rival"]], settings, sys.stdin, say)


if __name__ == "__main__":
    main()
