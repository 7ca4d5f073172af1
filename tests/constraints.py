"""Random settings of every processor, and transformers' own processors for the same settings."""

from __future__ import annotations

import transformers as hf

EOS = (7, 11)
SIZE = 61  # of the vocabulary


def ids(random, count, low=0, high=50):
    """Different tokens; forced ones come from above 50, so that random settings do not contradict each other."""
    return tuple(int(t) for t in random.choice(range(low, high), size=count, replace=False))


# field -> a random setting of it that changes something
PROCESSORS = {
    "logit_bias": lambda r: {t: float(r.integers(-16, 17)) / 4 for t in ids(r, 8)},
    "repetition_penalty": lambda r: float(r.choice([0.7, 1.2, 1.5, 3.0])),
    "frequency_penalty": lambda r: float(r.choice([-0.5, 0.5, 1.25, 2.0])),
    "presence_penalty": lambda r: float(r.choice([-0.5, 0.75, 1.5, 2.0])),
    "no_repeat_ngram_size": lambda r: int(r.integers(1, 4)),
    "bad_words": lambda r: [ids(r, int(n)) for n in r.integers(1, 4, size=12)] + [(EOS[0],), (3, 3), (5, 17)],
    "min_length": lambda r: int(r.integers(8, 30)),
    "min_tokens": lambda r: int(r.integers(1, 20)),
    "forced_tokens": lambda r: dict(zip(ids(r, 6, 1, 20), ids(r, 6, 50, 61), strict=True)),
    "suppress_tokens": lambda r: ids(r, 10),
    "begin_suppress_tokens": lambda r: ids(r, 20),
}
WARPERS = {
    "temperature": lambda r: float(r.choice([0.6, 0.9, 1.4])),
    "top_k": lambda r: int(r.integers(1, 30)),
    "top_p": lambda r: float(r.uniform(0.3, 0.99)),
    "min_p": lambda r: float(r.uniform(0.01, 0.3)),
    "typical_p": lambda r: float(r.uniform(0.3, 0.99)),
}


def settings(random, names):
    """Options of `Sampling` with random values for the given fields."""
    return {"eos_token_ids": EOS} | {name: (PROCESSORS | WARPERS)[name](random) for name in names}


def some(random, of):
    """A random choice of at least two of the names."""
    return [str(n) for n in random.choice(list(of), size=int(random.integers(2, len(of) + 1)), replace=False)]


class OpenAI(hf.LogitsProcessor):
    """x - f * n - a * (n > 0) by definition, where transformers has nothing."""

    def __init__(self, prompt_length, frequency, presence):
        self._settings = prompt_length, frequency, presence

    def __call__(self, input_ids, scores):
        start, frequency, presence = self._settings
        generated = input_ids[0, start:].tolist()
        scores = scores.clone()
        for token in set(generated):
            scores[0, token] = scores[0, token] - frequency * generated.count(token)
            scores[0, token] = scores[0, token] - presence
        return scores


def references(sampling, prefix):
    """transformers' processors, in the order of its ``_get_logits_processor``."""
    s, prompt = sampling, prefix.prompt_length
    made = []
    if s.logit_bias:
        made.append(hf.SequenceBiasLogitsProcessor({(t,): b for t, b in s.logit_bias}))
    if s.repetition_penalty != 1:
        made.append(hf.RepetitionPenaltyLogitsProcessor(s.repetition_penalty))
    made.append(OpenAI(prompt, s.frequency_penalty, s.presence_penalty))
    if s.no_repeat_ngram_size:
        made.append(hf.NoRepeatNGramLogitsProcessor(s.no_repeat_ngram_size))
    if s.bad_words:
        made.append(hf.NoBadWordsLogitsProcessor([list(w) for w in s.bad_words], list(s.eos_token_ids)))
    made.append(hf.MinLengthLogitsProcessor(s.min_length, list(s.eos_token_ids)))
    made.append(hf.MinNewTokensLengthLogitsProcessor(prompt, s.min_tokens, list(s.eos_token_ids)))
    made += [hf.ForcedEOSTokenLogitsProcessor(prompt + i + 1, token) for i, token in s.forced_tokens]
    if s.suppress_tokens:
        made.append(hf.SuppressTokensLogitsProcessor(s.suppress_tokens))
    if s.begin_suppress_tokens:
        made.append(hf.SuppressTokensAtBeginLogitsProcessor(s.begin_suppress_tokens, prompt))
    return made


def warpers(sampling):
    """transformers' warpers, in its order."""
    s = sampling
    made = [hf.TemperatureLogitsWarper(s.temperature)]
    made += [hf.TopKLogitsWarper(s.top_k)] if s.top_k else []
    made += [hf.TopPLogitsWarper(s.top_p)] if s.top_p < 1 else []
    made += [hf.MinPLogitsWarper(s.min_p)] if s.min_p else []
    made += [hf.TypicalLogitsWarper(s.typical_p)] if s.typical_p < 1 else []
    return made
