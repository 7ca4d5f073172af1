// One question and its answers on the page.

import { chart } from "./chart.js";
import { compared } from "./run.js";

const ENDS = { stop: "", length: "Ended at the most tokens.", stopped: "Stopped." };

function made(name, className = "", text = "") {
  return Object.assign(document.createElement(name), { className, textContent: text });
}

const shown = (value, digits, unit = "") => (value === null ? "–" : value.toFixed(digits) + unit);

// An answer as it is written: coloured text, and figures beside it.
class Answer {
  #text = made("p", "text");
  #figures = {};
  #ended = made("p", "ended");
  #last = null;

  constructor(heading, names) {
    this.element = made("section", "answer");
    const figures = made("dl", "figures");
    for (const name of names) {
      const [row, value] = [made("div"), made("dd", "", "–")];
      row.append(made("dt", "", name), value);
      figures.append(row);
      this.#figures[name] = value;
    }
    this.element.append(made("h3", "", heading), this.#text, figures, this.#ended);
  }

  write(tokens) {
    for (const { text, by } of tokens) {
      if (!text) continue;
      const name = `by-${by}`;
      if (this.#last?.className !== name) this.#text.append((this.#last = made("span", name)));
      this.#last.append(text);
    }
  }

  figures(run, against) {
    const values = {
      "α": shown(run.alpha, 2),
      "τ": shown(run.tau, 2),
      tokens: String(run.tokens),
      "tokens/s": shown(run.rate, 1),
      "against plain": shown(against, 2, "×"),
    };
    for (const [name, element] of Object.entries(this.#figures)) {
      if (element.textContent !== values[name]) element.textContent = values[name];
    }
  }

  end(run) {
    const drafter = run.draft && run.draft !== "plain" ? `Drafts by ${run.draft}. ` : "";
    this.#ended.textContent = drafter + (ENDS[run.finish] ?? `Ended: ${run.finish}.`);
  }
}

export class Turn {
  #answers = made("div", "answers");

  constructor(question) {
    this.element = made("article");
    this.element.append(made("h2", "", question), this.#answers);
  }

  drafted() {
    return this.#added("With drafts", ["α", "τ", "tokens", "tokens/s", "against plain"]);
  }

  plain() {
    return this.#added("Plain decoding", ["tokens", "tokens/s"]);
  }

  #added(heading, names) {
    const answer = new Answer(heading, names);
    this.#answers.append(answer.element);
    return answer;
  }

  // Whether the words are the same, and when they came; the sentence that says so.
  compare(drafted, plain) {
    const { at, isWhole, speed } = compared(drafted, plain);
    const words = at < 0
      ? `The same words${isWhole ? "" : ", as far as both were written"}`
      : `The words differ from character ${at + 1} on`;
    const sentence = speed === null ? `${words}.` : `${words}; ${speed.toFixed(2)} times the speed of plain decoding.`;
    const verdict = made("p", at < 0 ? "verdict" : "verdict wrong", sentence);
    verdict.dataset.same = String(at < 0);
    this.element.append(verdict, chart(drafted, plain, this.element.clientWidth));
    return sentence;
  }

  fail(message) {
    this.element.append(made("p", "wrong", message));
  }
}
