// The server's endpoints, below the address of this page; the key lives in memory only.

export class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export class Api {
  key = "";

  async get(path) {
    return (await this.#fetch(path, {})).json();
  }

  // The chunks of a chat completion, each as soon as it is there.
  async *stream(body, signal) {
    const response = await this.#fetch("v1/chat/completions", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
      signal,
    });
    try {
      for await (const data of events(response.body)) {
        if (data === "[DONE]") return;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new ServerError(chunk.error.message, chunk.status);
        yield chunk;
      }
    } catch (error) {
      throw error instanceof TypeError ? new ServerError(`the connection broke: ${error.message}`, 0) : error;
    }
    throw new ServerError("the server ended the answer half-way", 0);
  }

  async #fetch(path, options) {
    const headers = { ...options.headers, ...(this.key && { authorization: `Bearer ${this.key}` }) };
    let response;
    try {
      response = await fetch(path, { ...options, headers, credentials: "omit" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ServerError(`the server cannot be reached: ${error.message}`, 0);
    }
    if (response.ok) return response;
    const found = await response.json().catch(() => ({}));
    throw new ServerError(found.error?.message ?? `the server answered ${response.status}`, response.status);
  }
}

// The data of server-sent events, from the bytes of a body.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) if (part.startsWith("data: ")) yield part.slice(6);
    }
  } finally {
    reader.cancel().catch(() => {}); // who leaves early lets go of the text
  }
}
