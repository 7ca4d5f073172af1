// When the tokens came: two lines over time.

const WIDEST = 700, HEIGHT = 160, LEFT = 44, RIGHT = 12, TOP = 10, BOTTOM = 28;

function made(name, attributes, text = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.textContent = text;
  return element;
}

// As wide as there is place for, so that its words keep their size.
export function chart(drafted, undrafted, room) {
  const width = Math.min(room || WIDEST, WIDEST);
  const runs = [[drafted, "drafted"], [undrafted, "undrafted"]];
  const time = Math.max(...runs.map(([run]) => run.seconds * 1000), 1);
  const most = Math.max(...runs.map(([run]) => run.tokens), 1);
  const x = (ms) => LEFT + (ms / time) * (width - LEFT - RIGHT);
  const y = (tokens) => HEIGHT - BOTTOM - (tokens / most) * (HEIGHT - TOP - BOTTOM);
  const said = runs.map(([run, name]) =>
    `${name === "drafted" ? "with drafts" : "plain"} ${run.tokens} tokens in ${run.seconds.toFixed(2)} s`);
  const svg = made("svg", {
    class: "chart", viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": `Tokens over time: ${said.join(", ")}`,
  });
  svg.append(made("path", { class: "axis", d: `M${LEFT} ${TOP}V${HEIGHT - BOTTOM}H${width - RIGHT}` }));
  for (const [run, name] of runs) {
    const steps = run.times.map(([ms, tokens]) => `H${x(ms).toFixed(1)}V${y(tokens).toFixed(1)}`);
    svg.append(made("path", { class: name, d: `M${x(0)} ${y(0)}${steps.join("")}` }));
  }
  svg.append(
    made("text", { x: LEFT - 6, y: TOP + 10, "text-anchor": "end" }, String(most)),
    made("text", { x: LEFT - 6, y: HEIGHT - BOTTOM, "text-anchor": "end" }, "0"),
    made("text", { x: width - RIGHT, y: HEIGHT - 8, "text-anchor": "end" }, `${(time / 1000).toFixed(2)} s`),
    made("text", { x: LEFT, y: HEIGHT - 8 }, "— with drafts, - - plain"),
  );
  return svg;
}
