"""A job over a file of prompts, several at a time: `python batch_job.py prompts.jsonl answers.jsonl [MODEL]`.

A line of the input is {"prompt": ...} or {"messages": [...]}, with an "id" and options of its own where wanted. A
prompt that fails costs its own answer only. `selfspec batch` does the same, and goes on where a killed run ended.
"""

import json
import sys
from pathlib import Path

import selfspec


def main(source, target, *model):
    """Answer every line of ``source``; answers are written as they come."""
    requests = [json.loads(line) for line in Path(source).read_text(encoding="utf-8").splitlines()]
    names = [request.pop("id", str(number)) for number, request in enumerate(requests)]
    engine = selfspec.load(*model)
    with Path(target).open("w", encoding="utf-8") as file:
        for number, result in engine.batch(requests, slots=4, max_new_tokens=48):
            failed = isinstance(result, selfspec.SelfspecError)
            answer = {"error": str(result)} if failed else {"text": result.text, "rounds": result.stats.rounds}
            print(json.dumps({"id": names[number], **answer}), file=file, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
