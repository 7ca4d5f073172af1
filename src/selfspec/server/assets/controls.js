// Controls for the drafters and their options, made from what the server offers.

const MAIN = ["gamma", "exit_layer"];
const LABELS = { gamma: "Draft length γ", exit_layer: "Exit layer" };

export class Controls {
  #offers = { data: [], layers: 1, default: "" };
  #kept = {}; // what was typed, by drafter

  constructor() {
    this.draft = document.getElementById("draft");
    this.draft.addEventListener("change", () => this.#show());
  }

  // Offer these drafters.
  fill(offers) {
    this.#offers = offers;
    this.draft.replaceChildren(...offers.data.map(({ id }) => {
      const option = new Option(id === offers.default ? `${id} (this server's)` : id, id);
      option.defaultSelected = id === offers.default;
      return option;
    }));
    this.draft.value = offers.default;
    this.#show();
  }

  // The request's `speculative`: the drafter, and what differs from its defaults.
  get asked() {
    return { draft: this.draft.value, ...this.#kept[this.draft.value] };
  }

  #show() {
    const { summary, options } = this.#offers.data.find(({ id }) => id === this.draft.value);
    document.getElementById("draft-help").textContent = `${summary}.`;
    const rank = (option) => (MAIN.includes(option.name) ? MAIN.indexOf(option.name) : MAIN.length);
    const main = options.filter((option) => rank(option) < MAIN.length).sort((a, b) => rank(a) - rank(b));
    const more = options.filter((option) => rank(option) === MAIN.length);
    document.getElementById("main-options").replaceChildren(...main.map((option) => this.#control(option)));
    document.getElementById("more-options").replaceChildren(...more.map((option) => this.#control(option)));
    document.getElementById("more").hidden = more.length === 0;
  }

  #control(option) {
    const draft = this.draft.value;
    const kept = (this.#kept[draft] ??= {});
    const id = `option-${option.name}`;
    const box = document.createElement("div");
    const label = Object.assign(document.createElement("label"), {
      htmlFor: id, textContent: LABELS[option.name] ?? option.name.replaceAll("_", " "),
    });
    const help = Object.assign(document.createElement("p"), {
      id: `${id}-help`, className: "help", textContent: option.help,
    });
    const input = Object.assign(document.createElement("input"), { id, name: option.name });
    input.setAttribute("aria-describedby", help.id);
    if (option.type === "boolean") {
      Object.assign(input, { type: "checkbox", checked: kept[option.name] ?? option.default });
      box.className = "switch";
      box.append(input, label);
      input.addEventListener("change", () => keep(kept, option, input.checked));
    } else {
      const isNumber = option.type !== "string";
      Object.assign(input, {
        type: isNumber ? "number" : "text", value: kept[option.name] ?? "", placeholder: option.default ?? "",
        ...(isNumber && { step: option.type === "integer" ? "1" : "any", min: "0" }),
      });
      input.addEventListener("input", () =>
        keep(kept, option, input.value === "" ? undefined : isNumber ? Number(input.value) : input.value));
      box.append(label, input);
      if (option.name === "exit_layer") box.append(this.#layers(input));
    }
    const whole = document.createElement("div");
    whole.append(box, help);
    return whole;
  }

  // Layers at which a draft can leave, to choose among or to type over.
  #layers(input) {
    const list = Object.assign(document.createElement("datalist"), { id: `${input.id}-layers` });
    for (let layer = 1; layer < this.#offers.layers; layer += 1) list.append(new Option("", String(layer)));
    list.append(new Option("", "adaptive"));
    input.setAttribute("list", list.id);
    input.placeholder ||= `1 to ${this.#offers.layers - 1}, or adaptive`;
    return list;
  }
}

function keep(kept, option, value) {
  if (value === undefined || value === option.default) delete kept[option.name];
  else kept[option.name] = value;
}
