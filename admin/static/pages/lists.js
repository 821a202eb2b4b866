// Pages that are one list of rows: a question, a path of the API, the columns, and where a row leads.

import { html, useState } from "../vendor/preact-htm.js";
import { useAnswer } from "../load.js";
import { Cards, Change, cliFilters, Conditions, Copies, Facts, Failure, Partial, Table } from "../parts.js";
import { decoded, printable, shown, size } from "../words.js";

const to = (page, query) => `#/${page}?${new URLSearchParams(query)}`;
const client = (row) => `#/client?id=${encodeURIComponent(row.client_id)}`;
const worth = ({ value, unit }) => (unit === "bytes" ? size(value) : unit === "ratio" ? `${Math.round(value * 100)} %` : unit === "s" ? shown("value_s", value) : `${shown("", value)} ${unit}`);
const topic = (row) => `#/topics?topic=${encodeURIComponent(row.topic)}`;

// Whether the copies are whole, in one line: the list below has a row for each.
function Copied({ beat }) {
  const { answer, problem } = useAnswer("/cluster", {}, beat);
  if (!answer) return problem ? html`<${Failure} problem=${problem} />` : html`<p role="status">Asking …</p>`;
  const short = answer.partitions_under_replicated, none = answer.partitions_without_primary, aside = answer.stores_aside;
  return html`<${Cards} cards=${[
    ["Partitions", shown("", answer.partitions)], ["Copies wanted", shown("", answer.replicas)],
    ["Too few copies in sync", shown("", short) || "not known", short ? "warn" : "good"], ["Without primary", shown("", none), none ? "bad" : "good"],
    ["Damaged stores put aside", shown("", aside) || "not known", aside ? "warn" : "good"],
  ]} />`;
}

// What the nodes keep against what they may, and one retained message once it is named.
function Kept({ query, me }) {
  const budget = useAnswer("/stats", { columns: "node,gauges", limit: 1000 });
  const one = useAnswer(query.topic && !/[*?]/.test(query.topic) && me.role !== "viewer" ? "/retained" : null, { topic: query.topic, payload: "full" });
  const sum = (name) => (budget.answer ? budget.answer.rows.reduce((all, row) => all + (Object.entries(row.gauges || {}).find(([key]) => key === name) || [0, 0])[1], 0) : undefined);
  const bytes = sum("stratamq_retained_bytes"), most = sum("stratamq_retained_budget_bytes");
  const row = one.answer && one.answer.rows.find((found) => found.topic === query.topic);
  return html`${budget.answer ? html`<${Cards} cards=${[["Retained messages", shown("", sum("stratamq_retained_messages"))], ["Their bytes", size(bytes)], ["Of a budget of", most ? `${size(most)} (${Math.round((bytes / most) * 1000) / 10} %)` : "no bound", most && bytes > 0.9 * most ? "warn" : ""]]} />` : html`<p role="status">Asking …</p>`}
    ${row ? html`<h2>${printable(row.topic)}</h2><${Facts} facts=${{ ...row, payload: decoded(row.payload) }} />
      <${Change} label="Take it away" method="POST" path="/retained/clear" body=${{ topics: [row.topic] }} danger=${true} enabled=${me.role === "admin"} />` : null}`;
}

// Members of one shared group, once its name and filter are chosen.
function Members({ query, answer }) {
  if (!answer || !query.group || !query.filter) return null;
  const who = answer.rows.filter((row) => row.group === query.group && row.filter === query.filter).flatMap((row) => row.who || []);
  return html`<h2>Members of ${printable(query.group)}</h2><${Table} caption="Members" rows=${who.map(placed)} columns=${["client_id", "online", "queued", "oldest_s", "node", "partition"]} links=${{ client_id: client }} empty="No member." />`;
}

// Let no new client in at a listener, of one edge or of all; those that are there stay.
function Pausing({ answer, me }) {
  const [chosen, setChosen] = useState("");
  const rows = answer ? answer.rows : [];
  const may = me.role !== "viewer";
  const [listener, node] = JSON.parse(chosen || "[]");
  const all = [...new Set(rows.map((row) => row.listener))].map((name) => [name, ""]).concat(rows.map((row) => [row.listener, row.node]));
  const label = ([name, at]) => `${name} of ${at || "all edges"}`;
  const path = (verb) => `/listeners/${encodeURIComponent(listener)}/${verb}`;
  return html`<h2>Maintenance</h2><div class="row"><label>listener <select value=${chosen} onChange=${(event) => setChosen(event.target.value)}><option value="">choose</option>${all.map((one) => html`<option key=${label(one)} value=${JSON.stringify(one)}>${label(one)}</option>`)}</select></label>
    ${listener ? html`<${Change} label=${`Pause ${label([listener, node])}`} method="POST" path=${path("pause")} body=${{ node }} danger=${true} enabled=${may} />
      <${Change} label=${`Resume ${label([listener, node])}`} method="POST" path=${path("resume")} body=${{ node }} enabled=${may} />` : null}</div>`;
}

const placed = (row) => (row.partition < 0 ? { ...row, partition: undefined } : row); // of an ephemeral session or group: at an edge alone

export const LISTS = {
  clients: {
    title: "Clients", question: "Who is connected?", path: "/clients", cli: "stratamq client list", live: true,
    columns: ["client_id", "user", "state", "node", "proto", "address", "listener", "keep_alive_s", "connected_at", "inflight", "queued", "subscriptions", "rtt_p99_ms", "dropped"],
    filters: ["client_id", "user", "node", "listener", "address", "proto", "state"], links: { client_id: client },
  },
  sessions: {
    title: "Sessions", question: "Who is behind?", path: "/sessions", cli: "stratamq session list", live: true, best: { oldest_s: "those that wait longest", queued: "most queued", bytes: "most bytes", dropped: "most dropped" },
    columns: ["client_id", "online", "node", "queued", "bytes", "oldest_s", "expires_in_s", "subscriptions", "inflight", "dropped", "partition", "storage"],
    filters: ["client_id", "online", "node", "user", "partition"], links: { client_id: client },
  },
  subscriptions: {
    title: "Subscriptions", question: "What is subscribed?", path: "/subscriptions", cli: "stratamq subscription list",
    columns: ["client_id", "filter", "qos", "share", "no_local", "retain_as_published", "identifier", "since", "durable", "node", "partition"],
    filters: ["client_id", "filter", "share", "node"], links: { client_id: client },
  },
  shares: {
    title: "Shares", question: "Is a group skewed?", path: "/shares", cli: "stratamq share list", live: true, of: placed, below: Members,
    columns: ["group", "filter", "members", "online", "queued", "oldest_s", "delivered", "redispatched", "skew", "node", "partition"], filters: ["group", "filter", "node"],
    links: { group: (row) => to("shares", { group: row.group, filter: row.filter }) }, empty: "No shared group.",
  },
  retained: {
    title: "Retained", question: "What is kept?", path: "/retained", cli: "stratamq retained list", above: Kept,
    columns: ["topic", "bytes", "qos", "age_s", "expires_in_s", "publisher", "content_type", "partition", "storage"], filters: ["topic", "publisher", "storage"], links: { topic: (row) => to("retained", { topic: row.topic }) },
  },
  routes: {
    title: "Routes", question: "Which topics are cached where?", path: "/routes", cli: "stratamq topic list",
    columns: ["topic", "filter", "node", "shard", "local", "edges", "partitions", "groups", "traced"], filters: ["topic", "node"], links: { topic },
  },
  storage: {
    title: "Storage", question: "Are the copies whole?", path: "/partitions", cli: "stratamq store replicas", live: true, best: { lag_ops: "the furthest behind", queue_oldest_s: "the oldest queues", sessions: "most sessions" },
    columns: ["partition", "node", "role", "primary", "epoch", "op_index", "lag_ops", "in_sync", "sessions", "queued", "queue_oldest_s", "acknowledges"],
    filters: ["partition", "node", "role"], above: Copied,
  },
  slow: {
    title: "Slow", question: "Who cannot follow?", path: "/slow", cli: "stratamq slow", live: true,
    choices: { by: ["age", "window", "unsent", "queued", "bytes"] },
    columns: ["client_id", "node", "by", "value", "since", "partition"], filters: ["client_id", "node"], links: { client_id: client }, empty: "Nobody is behind.", of: (row) => ({ ...row, value: worth(row), unit: undefined }),
  },
  drops: {
    title: "Drops", question: "What was dropped, and why?", path: "/drops", cli: "stratamq drops", live: true,
    columns: ["reason", "count", "node", "last_at", "last_client_id", "last_topic"], filters: ["reason", "node"],
    keep: (row) => row.count, empty: "Nothing was dropped since these nodes began.", links: { last_client_id: (row) => to("client", { id: row.last_client_id }) },
  },
  journal: {
    title: "Journal", question: "What was refused, dropped, taken over?", path: "/journal", cli: "stratamq journal", live: true,
    columns: ["at", "node", "event", "reason", "client_id", "topic", "origin", "detail", "left_out"], filters: ["event", "reason", "client_id", "topic", "node"], links: { client_id: client, origin: (row) => to("message", { origin: row.origin }) },
  },
  logs: {
    title: "Logs", question: "What was said?", path: "/logs", cli: "stratamq log", live: true,
    columns: ["at", "node", "level", "event", "message", "fields"], filters: ["level", "event", "node"],
  },
  config: {
    title: "Configuration", question: "What is set, and by whom?", path: "/config", cli: "stratamq config list",
    columns: ["node", "name", "value", "source", "default", "needs_restart"], filters: ["node", "name", "source"],
  },
  operations: {
    title: "Operations", question: "Which long work runs, and how much is left?", path: "/operations", cli: "stratamq operation list", live: true,
    columns: ["id", "kind", "node", "state", "done", "total", "left", "unit", "eta_s", "cancel", "detail"], filters: [], empty: "No long work runs: no rebalance, no drain, no export.",
  },
  listeners: {
    title: "Listeners", question: "Where do clients come in?", path: "/edge-listeners", cli: "stratamq listener list", live: true, below: Pausing,
    columns: ["node", "listener", "kind", "bind", "state", "connections", "connections_max"], filters: ["node", "listener", "state"],
  },
};

export function List({ page, query, go, beat, me }) {
  const { title, question, path, columns, filters, links, cli, live, best, choices = {}, empty = "No row meets this.", of = (row) => row, keep = () => true } = page;
  const by = best ? query.by ?? Object.keys(best)[0] : undefined; // the greatest of this column; "no": in the order of the nodes
  const greatest = by === "no" ? undefined : by;
  const chosen = Object.fromEntries(Object.entries(choices).map(([name, values]) => [name, query[name] || values[0]]));
  const asked = { ...(filters.length ? { limit: 100 } : {}), ...Object.fromEntries(filters.map((name) => [name, query[name]])), ...chosen, best: greatest, cursor: query.cursor };
  const { answer, problem } = useAnswer(path, asked, live && !query.cursor ? beat : 0);
  const rows = answer ? answer.rows.filter(keep).map(of) : [];
  const total = answer && answer.total_about > rows.length && !page.keep ? ` of about ${answer.total_about}` : "";
  const none = answer && (answer.partial || []).length ? "No row at the nodes that answered." : empty;
  const chooser = (name, label, value, options) => html`<label key=${name}>${label} <select value=${value} onChange=${(event) => go({ ...query, [name]: event.target.value, cursor: "" })}>${options.map(([one, text]) => html`<option key=${one} value=${one}>${text}</option>`)}</select></label>`;
  return html`<h1>${title}</h1><p class="question">${question}</p>
    ${best || page.choices ? html`<div class="row">${best ? chooser("by", "first", by, [...Object.entries(best), ["no", "in the order of the nodes"]]) : null}
      ${Object.entries(choices).map(([name, values]) => chooser(name, name, chosen[name], values.map((value) => [value, value])))}</div>` : null}
    ${page.above ? html`<${page.above} query=${query} beat=${beat} me=${me} />` : null}
    ${filters.length ? html`<${Conditions} columns=${filters} query=${query} go=${go} />` : null}
    <${Failure} problem=${problem} /><${Partial} page=${answer} />
    ${answer ? html`<${Table} caption=${title} total=${total} rows=${rows} columns=${columns} links=${links} empty=${none} />` : problem ? null : html`<p role="status">Asking the nodes …</p>`}
    <div class="row">
      ${query.cursor ? html`<button type="button" onClick=${() => go({ ...query, cursor: "" })}>First page</button>` : null}
      ${answer && answer.cursor ? html`<button type="button" onClick=${() => go({ ...query, cursor: answer.cursor })}>Next page</button>` : null}
    </div>
    ${page.below ? html`<${page.below} query=${query} answer=${answer} me=${me} />` : null}
    <${Copies} cli=${cli + (greatest ? ` --best ${greatest}` : "") + cliFilters({ ...chosen, ...query }, [...filters, ...Object.keys(choices)])} path=${path} query=${asked} />`;
}
