// The service's API: requests, problems, the live stream, and what a person may copy.

export const BASE = "/api/v1";
let csrf = "";

export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || `the service answered ${status}`);
    this.status = status;
    this.code = body.code || "";
    this.what = body.do || "";
  }
}

export function remember(me) {
  csrf = me.csrf || "";
}

export function address(path, query = {}) {
  const pairs = Object.entries(query).filter(([, value]) => value !== "" && value !== undefined && value !== null);
  const text = new URLSearchParams(pairs.flatMap(([key, value]) => [].concat(value).map((one) => [key, String(one)]))).toString();
  return BASE + path + (text ? "?" + text : "");
}

export async function ask(path, query = {}, signal = undefined) {
  return answered(await fetch(address(path, query), { signal, headers: { Accept: "application/json" } }));
}

export async function change(method, path, query = {}, body = undefined) {
  const headers = { Accept: "application/json", "X-CSRF": csrf, "Idempotency-Key": crypto.randomUUID() };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  return answered(await fetch(address(path, query), { method, headers, body: body === undefined ? undefined : JSON.stringify(body) }));
}

// Numbers of sessions and origins have 64 bits: those that JavaScript would round become texts.
export function exact(text) {
  return text.replace(/"(?:[^"\\]|\\.)*"|(?<![\d.])-?\d{16,}(?![\d.eE])/g, (one) => (one.startsWith('"') ? one : `"${one}"`));
}

async function answered(response) {
  const text = await response.text();
  let body = {};
  try {
    body = text ? JSON.parse(exact(text)) : {};
  } catch {
    body = { detail: "the answer is no JSON" };
  }
  if (!response.ok) throw new Problem(response.status, body);
  return body;
}

// One stream for the page that is shown; a hidden tab has none. A browser gives a stream up that is refused: it is opened anew.
export function follow(take, failed, ended) {
  const AGAIN_MS = 3000;
  let source = null;
  let timer = 0;
  let over = false;
  const close = () => {
    clearTimeout(timer);
    if (source) source.close();
    source = null;
  };
  const lost = async () => {
    failed();
    if (!source || source.readyState !== EventSource.CLOSED) return;
    close();
    try {
      await ask("/me");
    } catch (error) {
      if (error instanceof Problem && error.status === 401) return ended(error);
    }
    if (!over) timer = setTimeout(open, AGAIN_MS);
  };
  const open = () => {
    if (document.hidden) {
      close();
    } else if (!source) {
      source = new EventSource(BASE + "/live");
      source.addEventListener("figures", (event) => take(JSON.parse(event.data)));
      source.onerror = lost;
    }
  };
  document.addEventListener("visibilitychange", open);
  open();
  return () => {
    over = true;
    document.removeEventListener("visibilitychange", open);
    close();
  };
}

export function quoted(word) {
  return /^[A-Za-z0-9_@%+=:,./-]+$/.test(word) ? word : "'" + String(word).replaceAll("'", "'\\''") + "'";
}

export function curl(path, query = {}) {
  return `curl -H "Authorization: Bearer $TOKEN" ${quoted(location.origin + address(path, query))}`;
}
