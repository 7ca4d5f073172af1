// What a screen reader hears of an answer: whole sentences, a few at a time, never single tokens.

const PAUSE = 4000; // milliseconds between two announcements

export class Speech {
  #region = document.getElementById("spoken");
  #said = 0;
  #last = -Infinity;

  begin() {
    this.#said = 0;
    this.#tell("Writing.");
  }

  // The answer so far; what is whole of it is said when the last words are long enough ago.
  take(text) {
    if (performance.now() - this.#last < PAUSE) return;
    const end = Math.max(...[". ", "! ", "? ", "\n"].map((mark) => text.lastIndexOf(mark)));
    if (end < this.#said) return;
    this.#tell(text.slice(this.#said, end + 1));
    this.#said = end + 1;
  }

  end(text, remark) {
    this.#tell(`${text.slice(this.#said)} ${remark}`);
  }

  #tell(words) {
    this.#last = performance.now();
    this.#region.textContent = words;
  }
}
