"""Run by a Python that has llama-cpp-python: greedy answers with `selfspec.llamacpp.draft`. JSON in, JSON out.

It needs nothing of the tests; `selfspec` must be importable.
"""

from __future__ import annotations

import json
import sys
import time

import selfspec.llamacpp


def main() -> None:
    """Answer all prompts in turn with one object for each of ``drafts``; None is plain decoding."""
    from llama_cpp import Llama

    asked = json.load(sys.stdin)
    answers = []
    for draft in asked["drafts"]:
        options = dict(draft or {})
        predictions = options.pop("predictions", {})
        drafts = None if draft is None else selfspec.llamacpp.draft(options.pop("draft"), **options)
        llm = Llama(asked["model"], n_threads=1, n_threads_batch=1, draft_model=drafts, **asked["settings"])
        texts, passes, began = [], [], time.perf_counter()
        for index, prompt in enumerate(asked["prompts"]):
            if drafts is not None:
                drafts.prediction = predictions.get(str(index), ())
            texts.append(answer(llm, prompt, asked["tokens"], passes))
        counts = {} if drafts is None else {"drafted": drafts.drafted, "accepted": drafts.accepted}
        seconds = time.perf_counter() - began
        answers.append({"texts": texts, "passes": len(passes), "seconds": seconds, **counts})
        llm.close()
    print("ANSWER " + json.dumps(answers))


def answer(llm, prompt, most, passes):
    """At most ``most`` greedy tokens, end of text included; ``passes`` gets the rows of all after the prompt's."""
    plainly, found = llm.eval, []
    llm.eval = lambda tokens: (passes.append(len(tokens)) if found else None, plainly(tokens))
    try:
        for token in llm.generate(prompt, temp=0.0, top_k=1, repeat_penalty=1.0):
            found.append(int(token))
            if len(found) == most or token == llm.token_eos():
                return found
    finally:
        llm.eval = plainly
    raise AssertionError("generate ended by itself")


if __name__ == "__main__":
    main()
