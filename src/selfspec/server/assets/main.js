// The page: a conversation, each answer beside plain decoding of the same seed.

import { Api, ServerError } from "./api.js";
import { Controls } from "./controls.js";
import { Run } from "./run.js";
import { Speech } from "./speech.js";
import { Turn } from "./turn.js";

const at = (id) => document.getElementById(id);
const api = new Api();
const controls = new Controls();
const speech = new Speech();
let messages = [];
let writing = null; // the AbortController of the answer that is being written
let plainRate = null; // tokens per second of the last plain answer

function report(error) {
  at("alert").textContent = error.message;
  if (error.status !== 401) return;
  at("settings").open = true;
  at("key-form").hidden = false;
  at("key").focus();
}

async function connect() {
  try {
    const [models, offers] = await Promise.all([api.get("v1/models"), api.get("v1/drafters")]);
    at("model").textContent = models.data[0].id;
    at("key-form").hidden = true;
    at("alert").textContent = "";
    controls.fill(offers);
    at("send").disabled = false;
    if (!isTouched()) at("question").focus();
  } catch (error) {
    at("send").disabled = true;
    report(error);
  }
}

// What is asked, the drafting aside: read once, for both answers.
function asked() {
  const temperature = at("temperature").valueAsNumber;
  return {
    messages: [...messages],
    stream: true,
    stream_options: { include_usage: true, include_drafts: true },
    max_tokens: at("max-tokens").valueAsNumber,
    temperature,
    seed: at("seed").valueAsNumber,
    ...(temperature > 0 && { coupled: true }), // the same sampled words, whoever drafts
  };
}

// Write one answer to its end, or until it is stopped.
async function write(answer, body, shows) {
  const run = new Run(performance.now());
  let frame = 0;
  const draw = () => {
    frame = 0;
    shows(run);
  };
  try {
    for await (const chunk of api.stream(body, writing.signal)) {
      const bottom = isAtBottom();
      answer.write(run.take(chunk, performance.now()));
      if (bottom) toBottom();
      frame ||= requestAnimationFrame(draw);
    }
  } catch (error) {
    if (error.name !== "AbortError") throw error;
    run.finish = "stopped";
  } finally {
    cancelAnimationFrame(frame);
    shows(run);
    answer.end(run);
  }
  return run;
}

async function answer(question) {
  const turn = new Turn(question);
  at("welcome")?.remove();
  at("turns").append(turn.element);
  messages.push({ role: "user", content: question });
  const before = messages.length;
  const body = asked();
  let drafted = null;
  try {
    const first = turn.drafted();
    toBottom();
    speech.begin();
    drafted = await write(first, { ...body, speculative: controls.asked }, (run) => {
      first.figures(run, run.rate && plainRate && run.rate / plainRate);
      speech.take(run.text);
    });
    speech.end(drafted.text, drafted.finish === "stopped" ? "Stopped." : "The answer is complete.");
    if (at("compare").checked && !writing.signal.aborted) {
      const second = turn.plain();
      const undrafted = { ...body, speculative: { enabled: false } };
      const plain = await write(second, undrafted, (run) => second.figures(run, null));
      plainRate = plain.rate ?? plainRate;
      first.figures(drafted, drafted.rate && plain.rate && drafted.rate / plain.rate);
      const bottom = isAtBottom();
      speech.end("", turn.compare(drafted, plain));
      if (bottom) toBottom();
    }
  } catch (error) {
    turn.fail(error.message);
    report(error);
    if (!(error instanceof ServerError)) throw error; // a mistake of ours: let the console say it
  } finally {
    if (messages.length === before && messages[before - 1]?.content === question) {
      if (drafted?.text) messages.push({ role: "assistant", content: drafted.text });
      else messages.pop(); // nothing was answered: the next question stands alone
    }
  }
}

const scroller = () => (at("turns").scrollHeight > at("turns").clientHeight + 1 ? at("turns") : document.scrollingElement);

function isAtBottom() {
  const box = scroller();
  return box.scrollHeight - box.scrollTop - box.clientHeight < 80;
}

function toBottom() {
  const box = scroller();
  box.scrollTop = box.scrollHeight;
}

function areValid(options) {
  if (options.checkValidity()) return true;
  at("settings").open = true; // what is wrong must be seen
  return options.reportValidity();
}

// One button in the place of another; who stands on it stays there.
function swap(one, other) {
  const had = document.activeElement === at(one);
  at(other).hidden = false;
  if (had) at(other).focus();
  at(one).hidden = true;
}

// Where fingers type, Enter is for new lines, and a field with the focus covers half of the screen.
const isTouched = () => matchMedia("(pointer: coarse)").matches;

async function send() {
  const question = at("question").value.trim();
  if (!question || writing || at("send").disabled || !areValid(at("options"))) return;
  writing = new AbortController();
  at("alert").textContent = "";
  at("question").value = "";
  swap("send", "stop");
  try {
    await answer(question);
  } finally {
    writing = null;
    swap("stop", "send");
    if (!isTouched()) at("question").focus();
  }
}

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
at("question").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || isTouched()) return;
  event.preventDefault();
  send();
});
at("stop").addEventListener("click", () => writing?.abort());
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") writing?.abort();
});
at("restart").addEventListener("click", () => {
  writing?.abort();
  messages = [];
  at("turns").replaceChildren();
  at("question").focus();
});
at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  api.key = at("key").value.trim();
  at("key").value = "";
  connect();
});
at("options").addEventListener("submit", (event) => event.preventDefault());
at("settings").open = matchMedia("(min-width: 60rem)").matches;
connect();
