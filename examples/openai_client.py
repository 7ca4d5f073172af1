"""OpenAI's client and `selfspec serve`: a stream, a prediction, a schema.

pip install 'selfspec[serve]' openai
selfspec serve &
python openai_client.py [http://localhost:8000/v1]
"""

import sys

import openai


def main(url="http://localhost:8000/v1"):
    """Ask three times."""
    client = openai.OpenAI(base_url=url, api_key="none")
    (model,) = client.models.list().data

    def ask(text, **how):
        return client.chat.completions.create(
            model=model.id, messages=[{"role": "user", "content": text}], max_tokens=48, **how
        )

    for chunk in ask("Name three rivers.", stream=True):  # as it is written; several tokens a chunk
        print(chunk.choices[0].delta.content or "", end="", flush=True)

    program = "def area(x):\n    return x * x\n"  # most of the answer is known: it is drafted from
    usage = ask(f"Rename x to side:\n{program}", prediction={"type": "content", "content": program}).usage
    print(f"\n{usage.completion_tokens_details.accepted_prediction_tokens} tokens came from the prediction")

    schema = {
        "type": "object",
        "properties": {"river": {"enum": ["Tagus", "Douro"]}},
        "required": ["river"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "river", "schema": schema}}
    answer = ask("Which river is in Lisbon?", response_format=form, extra_body={"speculative": {"draft": "suffix"}})
    print(answer.choices[0].message.content)


if __name__ == "__main__":
    main(*sys.argv[1:])
