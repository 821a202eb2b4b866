// Pages that explain: one client, one topic, one message; and traces.

import { html, useState } from "../vendor/preact-htm.js";
import { change, quoted } from "../api.js";
import { useAnswer } from "../load.js";
import { Answered, Asking, Change, Copies, Facts, Failure, Partial } from "../parts.js";
import { moment, printable, shown } from "../words.js";

const message = (row) => `#/message?${new URLSearchParams({ origin: row.origin })}`;

export function Steps({ steps }) {
  return html`<ol class="steps">${(steps || []).map((step, at) => html`<li key=${at}>
    ${step.at ? html`<time>${moment(step.at)} ${step.node}</time><br />` : step.node ? html`<time>${step.node}</time><br />` : null}
    <strong>${printable(step.what || "")}</strong>${step.why ? html`<br />${printable(step.why)}` : null}
    ${step.facts && Object.keys(step.facts).length ? html`<br /><span class="mono">${printable(Object.entries(step.facts).map(([name, value]) => `${name}=${shown(name, value)}`).join("  "))}</span>` : null}</li>`)}</ol>`;
}

function Sources({ answer }) {
  if (!answer) return null;
  return html`<p class="question">Sources: ${(answer.had || []).join(", ") || "none"}${(answer.partial || []).length ? `; not: ${answer.partial.map((one) => `${one.node} (${one.why})`).join(", ")}` : ""}</p>`;
}

export function Client({ query, go, me, beat }) {
  const id = query.id || "";
  const [wanted, setWanted] = useState(id);
  const part = encodeURIComponent(id);
  const now = useAnswer(id ? `/clients/${part}` : null, {}, beat);
  const why = useAnswer(id ? `/clients/${part}/explain` : null, {}, beat);
  const subscriptions = useAnswer(id ? `/clients/${part}/subscriptions` : null);
  const inflight = useAnswer(id ? `/clients/${part}/inflight` : null, {}, beat);
  const queue = useAnswer(id ? `/sessions/${part}/queue` : null, { limit: 20 }, beat);
  const journal = useAnswer(id ? "/journal" : null, { client_id: id, limit: 20 }, beat);
  const may = me.role !== "viewer";
  return html`<h1>One client</h1><p class="question">What is its story, and why does nothing reach it?</p>
    <form class="row" onSubmit=${(event) => { event.preventDefault(); go({ id: wanted }); }}>
      <label>client identifier <input value=${wanted} onInput=${(event) => setWanted(event.target.value)} /></label><button type="submit">Show</button></form>
    ${id ? html`<${Asking} state=${why} wanted=${true} /><${Failure} problem=${why.problem} />${why.answer ? html`<h2>Why</h2>${(why.answer.steps || []).some((step) => step.why === why.answer.verdict) ? null : html`<p><strong>${printable(why.answer.verdict || "Nothing keeps messages from it.")}</strong></p>`}<${Steps} steps=${why.answer.steps} /><${Sources} answer=${why.answer} />` : null}
      <${Asking} state=${now} wanted=${true} /><${Failure} problem=${now.problem} /><${Partial} page=${now.answer} />
      ${now.answer && now.answer.connection ? html`<h2>Connection at ${now.answer.edge}</h2><${Facts} facts=${now.answer.connection} />` : null}
      ${now.answer && now.answer.session ? html`<h2>Session at ${now.answer.primary}</h2><${Facts} facts=${now.answer.session} />` : null}
      <div class="row">${may ? html`<a href=${`#/traces?${new URLSearchParams({ kind: "client", pattern: id })}`}>Trace it</a>` : null}<${Change} label="Kick" method="DELETE" path=${`/clients/${part}`} danger=${true} enabled=${may} />
        ${now.answer && now.answer.session && now.answer.session.durable ? html`<${Change} label="Empty its queue" method="DELETE" path=${`/sessions/${part}/queue`} danger=${true} enabled=${me.role === "admin"} />
        <${Change} label="Delete its session" method="DELETE" path=${`/sessions/${part}`} danger=${true} enabled=${me.role === "admin" && !now.answer.connection} />` : null}</div>
      <h2>Queue</h2><${Answered} state=${queue} caption="First entries of the queue" columns=${["seq", "topic", "qos", "bytes", "state", "packet", "age_s", "arrived_at", "expires_in_s", "origin", "share"]} links=${{ origin: message }} empty="The queue is empty, or there is none." />
      <h2>Under way</h2><${Answered} state=${inflight} caption="Unacknowledged" columns=${["direction", "packet", "qos", "state", "topic", "age_s", "origin", "waits_for"]} links=${{ origin: message }} empty="Nothing is under way." />
      <h2>Subscriptions</h2><${Answered} state=${subscriptions} caption="Subscriptions" columns=${["filter", "qos", "share", "no_local", "retain_as_published", "identifier", "durable"]} empty="It subscribes to nothing." />
      <h2>Journal</h2><${Answered} state=${journal} caption="What nodes noted about it" columns=${["at", "node", "event", "reason", "topic", "origin", "detail", "left_out"]} links=${{ origin: message }} empty="No node noted anything about it." />
      <${Copies} cli=${`stratamq client explain ${quoted(id)}`} path=${`/clients/${part}/explain`} />` : null}`;
}

export function Topic({ query, go }) {
  const [topic, setTopic] = useState(query.topic || "");
  const [from, setFrom] = useState(query.from || "");
  const asked = { topic: query.topic, from: query.from };
  const { answer, problem } = useAnswer(query.topic ? "/topics/explain" : null, asked);
  return html`<h1>Topics</h1><p class="question">Who gets this topic, and why?</p>
    <form class="row" onSubmit=${(event) => { event.preventDefault(); go({ topic, from }); }}>
      <label>topic <input value=${topic} required onInput=${(event) => setTopic(event.target.value)} /></label>
      <label>published by client <input value=${from} onInput=${(event) => setFrom(event.target.value)} /></label><button type="submit">Explain</button></form>
    <${Asking} state=${{ answer, problem }} wanted=${query.topic} /><${Failure} problem=${problem} />${answer ? html`<${Steps} steps=${answer.steps} /><${Sources} answer=${answer} />` : null}
    ${query.topic ? html`<${Copies} cli=${`stratamq topic explain ${quoted(query.topic)}${query.from ? ` --from ${quoted(query.from)}` : ""}`} path="/topics/explain" query=${asked} />` : null}`;
}

function messageCli({ origin, client, packet, session, seq }) {
  if (origin) return `stratamq msg explain ${quoted(origin)}`;
  const named = (option, value) => (value ? ` ${option} ${quoted(value)}` : "");
  return client ? `stratamq msg explain${named("--client", client)}${named("--packet", packet)}` : `stratamq msg explain${named("--session", session)}${named("--seq", seq)}`;
}

export function Message({ query, go }) {
  const [form, setForm] = useState({ origin: query.origin || "", client: query.client || "", packet: query.packet || "", session: query.session || "", seq: query.seq || "" });
  const asked = Object.fromEntries(["origin", "client", "packet", "session", "seq"].map((name) => [name, query[name]]));
  const wanted = query.origin || query.client || query.session;
  const { answer, problem } = useAnswer(wanted ? "/messages/explain" : null, asked);
  const field = (name, label) => html`<label>${label} <input value=${form[name]} onInput=${(event) => setForm({ ...form, [name]: event.target.value })} /></label>`;
  return html`<h1>Message</h1><p class="question">What happened to this message?</p>
    <form class="row" onSubmit=${(event) => { event.preventDefault(); go(form); }}>${field("origin", "origin")}${field("client", "or client")}${field("packet", "and packet")}${field("session", "or session")}${field("seq", "and entry")}<button type="submit">Explain</button></form>
    <${Asking} state=${{ answer, problem }} wanted=${wanted} /><${Failure} problem=${problem} />${answer ? html`<${Steps} steps=${answer.steps} /><${Sources} answer=${answer} />` : null}
    ${wanted ? html`<${Copies} cli=${messageCli(query)} path="/messages/explain" query=${asked} />` : null}`;
}

export function Traces({ query, go, me, beat }) {
  const [form, setForm] = useState({ trace: "", kind: query.kind || "client", pattern: query.pattern || "", for_s: 600 });
  const [problem, setProblem] = useState(null);
  const list = useAnswer("/traces", {}, beat);
  const events = useAnswer(query.trace ? `/traces/${encodeURIComponent(query.trace)}` : null, { limit: 200 }, beat);
  const may = me.role !== "viewer";
  const start = async (event) => {
    event.preventDefault();
    try {
      await change("POST", "/traces", {}, { ...form, for_s: Number(form.for_s) });
      setProblem(null);
      go({ trace: form.trace });
    } catch (error) {
      setProblem(error);
    }
  };
  const field = (name, label, type = "text") => html`<label>${label} <input type=${type} required value=${form[name]} onInput=${(event) => setForm({ ...form, [name]: event.target.value })} /></label>`;
  return html`<h1>Traces</h1><p class="question">What is happening with X?</p>
    <form class="row" onSubmit=${start}>${field("trace", "name")}
      <label>of <select value=${form.kind} onChange=${(event) => setForm({ ...form, kind: event.target.value })}>${["client", "topic", "address", "origin"].map((kind) => html`<option key=${kind} value=${kind}>${kind}</option>`)}</select></label>
      ${field("pattern", "pattern")}${field("for_s", "seconds", "number")}<button type="submit" disabled=${!may}>Start</button></form>
    <${Failure} problem=${problem} />
    <${Answered} state=${list} caption="Traces" columns=${["trace", "node", "kind", "pattern", "state", "started_at", "until", "events", "events_max", "actor"]} links=${{ trace: (row) => `#/traces?trace=${encodeURIComponent(row.trace)}` }} empty="No trace runs." />
    ${query.trace ? html`<h2>Trace ${printable(query.trace)}</h2><div class="row"><${Change} label="Stop" method="DELETE" path=${`/traces/${encodeURIComponent(query.trace)}`} enabled=${may} /></div>
      <${Answered} state=${events} caption="Events" columns=${["at", "node", "stage", "client_id", "topic", "qos", "origin", "partition", "seq", "reason", "detail"]} empty="Nothing happened yet." />` : null}
    <${Copies} cli=${query.trace ? `stratamq trace export ${quoted(query.trace)}` : "stratamq trace list"} path=${query.trace ? `/traces/${encodeURIComponent(query.trace)}` : "/traces"} />`;
}
