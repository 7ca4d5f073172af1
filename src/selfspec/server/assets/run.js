// One answer as it comes: what was said, who wrote it, and when.

export class Run {
  text = "";
  tokens = 0;
  rounds = 0;
  drafted = 0;
  accepted = 0;
  finish = null; // OpenAI's finish_reason, "stopped" by the reader, or null while it is written
  draft = null; // the drafter, when it has ended
  times = []; // [milliseconds since it was asked for, tokens until then]
  #first = 0; // tokens of the first chunk, which is the prompt's
  #asked;

  constructor(now) {
    this.#asked = now;
  }

  // Take a chunk; the tokens in it.
  take(chunk, now) {
    this.draft = chunk.metrics?.speculative_decoding?.draft ?? this.draft;
    const choice = chunk.choices[0];
    this.finish = choice?.finish_reason ?? this.finish;
    const written = chunk.selfspec;
    if (!written) return [];
    if (this.times.length) this.rounds += 1;
    else this.#first = written.tokens.length;
    this.tokens += written.tokens.length;
    this.drafted += written.drafted;
    this.accepted += written.accepted;
    this.text += written.tokens.map((token) => token.text).join("");
    this.times.push([now - this.#asked, this.tokens]);
    return written.tokens;
  }

  get alpha() {
    return this.drafted ? this.accepted / this.drafted : null;
  }

  // Tokens per round, bonus included.
  get tau() {
    return this.rounds ? (this.tokens - this.#first) / this.rounds : null;
  }

  get seconds() {
    return this.times.length ? this.times.at(-1)[0] / 1000 : 0;
  }

  // Tokens per second after the first ones.
  get rate() {
    const span = this.times.length ? (this.times.at(-1)[0] - this.times[0][0]) / 1000 : 0;
    return span > 0 ? (this.tokens - this.#first) / span : null;
  }
}

// How two answers compare: where they part (-1: nowhere), as far as both were written.
export function compared(one, other) {
  const length = Math.min(one.text.length, other.text.length);
  let at = 0;
  while (at < length && one.text[at] === other.text[at]) at += 1;
  const isWhole = one.finish !== "stopped" && other.finish !== "stopped";
  const same = at === length && (!isWhole || one.text.length === other.text.length);
  return { at: same ? -1 : at, isWhole, speed: one.rate && other.rate ? one.rate / other.rate : null };
}
