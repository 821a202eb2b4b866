// Pages from the cluster's own verbs: ring, routers, members, nodes, users, tokens.

import { html, useState } from "../vendor/preact-htm.js";
import { useAnswer } from "../load.js";
import { Answered, Change, Copies, Facts, Failure, Table } from "../parts.js";
import { count, printable, shown } from "../words.js";

const tables = (answer) => Object.entries(answer || {}).filter(([, value]) => Array.isArray(value) && value.length && typeof value[0] === "object");
const facts = (answer) => Object.fromEntries(Object.entries(answer || {}).filter(([, value]) => !Array.isArray(value) || typeof value[0] !== "object"));
const columns = (rows) => [...new Set(rows.flatMap((row) => Object.keys(row)))];
// Nodes as an operator reads them: addresses for clients without doors of our own, and no incarnation.
const nodes = (rows) => rows.map(({ incarnation, clients, ...row }) => ({ ...row, listeners: clients && Object.fromEntries(Object.entries(clients).filter(([name]) => !name.startsWith("@"))) }));

export function Plain({ title, question, path, query = {}, cli, beat = 0, children }) {
  const { answer, problem } = useAnswer(path, query, beat);
  return html`<h1>${title}</h1><p class="question">${question}</p><${Failure} problem=${problem} />
    ${answer ? html`<${Facts} facts=${facts(answer)} />` : problem ? null : html`<p role="status">Asking …</p>`}
    ${children}
    ${tables(answer).map(([name, all]) => [name, name === "nodes" ? nodes(all) : all]).map(([name, rows]) => html`<h2 key=${name}>${name.replaceAll("_", " ")}</h2><${Table} caption=${`${name}: ${rows.length}`} rows=${rows} columns=${columns(rows)} />`)}
    <${Copies} cli=${cli} path=${path} query=${query} />`;
}

export function Ring({ me, go, query, beat }) {
  const { answer, problem } = useAnswer("/ring", {}, beat);
  const status = useAnswer("/ring/status", {}, beat);
  const plan = useAnswer(query.plan ? "/ring/plan" : null);
  const explained = useAnswer(query.name ? "/ring/explain" : null, { name: query.name });
  const [name, setName] = useState(query.name || "");
  const rows = (answer && answer.partitions) || [];
  const primaries = [...new Set(rows.map((row) => row.primary))].sort();
  const may = me.role !== "viewer";
  return html`<h1>Ring</h1><p class="question">Where is everything, and what would move?</p><${Failure} problem=${problem} />
    <form class="row" onSubmit=${(event) => { event.preventDefault(); go({ ...query, name }); }}>
      <label>client identifier or topic <input value=${name} onInput=${(event) => setName(event.target.value)} /></label><button type="submit">Where does it live?</button>
    </form>
    <${Failure} problem=${explained.problem} />${explained.answer ? html`<${Facts} facts=${explained.answer} />` : null}
    <h2>Rebalance</h2>${status.answer ? html`<${Facts} facts=${facts(status.answer)} />` : null}
    <div class="row">
      <button type="button" onClick=${() => go({ ...query, plan: "1" })}>What would move?</button>
      <${Change} label="Rebalance" method="POST" path="/ring/rebalance" body=${{}} enabled=${may} />
      <${Change} label="Pause" method="POST" path="/ring/pause" enabled=${may} /><${Change} label="Resume" method="POST" path="/ring/resume" enabled=${may} />
      <${Change} label="Abort" method="POST" path="/ring/abort" danger=${true} enabled=${may} />
    </div>
    <${Failure} problem=${plan.problem} />
    ${plan.answer ? html`<${Facts} facts=${facts(plan.answer)} />${tables(plan.answer).map(([title, moves]) => html`<h2>${title}</h2><${Table} caption=${`${title}: ${moves.length}`} rows=${moves} columns=${columns(moves)} />`)}` : null}
    <h2>Partitions</h2>
    ${primaries.map((primary) => html`<h3 key=${primary}>${printable(primary || "without primary")}: ${count(rows.filter((row) => row.primary === primary).length)}</h3>
      <div class="grid">${rows.filter((row) => row.primary === primary).map((row) => html`<button type="button" key=${row.partition} title=${`partition ${row.partition}`} aria-label=${`partition ${row.partition} of ${row.primary}`} onClick=${() => go({ ...query, partition: row.partition })}>${row.partition}</button>`)}</div>`)}
    ${query.partition ? html`<h2>Partition ${printable(query.partition)}</h2><${Facts} facts=${rows.find((row) => String(row.partition) === query.partition) || {}} />` : null}
    <${Copies} cli="stratamq ring show" path="/ring" />`;
}

export function Nodes({ me, beat }) {
  const { answer, problem } = useAnswer("/nodes", {}, beat);
  const rows = nodes((answer && answer.nodes) || []);
  const [node, setNode] = useState("");
  const may = me.role !== "viewer";
  return html`<h1>Nodes</h1><p class="question">What runs, and in which state?</p><${Failure} problem=${problem} />
    ${answer ? html`<${Table} caption=${`Nodes: ${rows.length}`} rows=${rows} columns=${columns(rows)} />` : problem ? null : html`<p role="status">Asking …</p>`}
    <h2>Maintenance</h2>
    <div class="row"><label>node <select value=${node} onChange=${(event) => setNode(event.target.value)}><option value="">choose</option>${rows.map((row) => html`<option key=${row.node} value=${row.node}>${row.node}</option>`)}</select></label>
      ${node ? html`<${Change} label=${`Drain ${node}`} method="POST" path=${`/nodes/${encodeURIComponent(node)}/drain`} danger=${true} enabled=${may} />
      <${Change} label=${`Use ${node} again`} method="POST" path=${`/nodes/${encodeURIComponent(node)}/undrain`} enabled=${may} />` : null}
    </div>
    <${Copies} cli="stratamq node list" path="/nodes" />`;
}

export function Users({ me, beat }) {
  const users = useAnswer("/users", { count: 100 }, beat);
  const bans = useAnswer("/bans", { count: 100 }, beat);
  const roles = useAnswer("/roles", { count: 100 }, beat);
  const [ban, setBan] = useState({ kind: "client_id", value: "", reason: "" });
  const may = me.role !== "viewer";
  return html`<h1>Users and bans</h1><p class="question">Who may log in, and who is kept out?</p>
    <${Answered} state=${users} name="users" caption="Users" columns=${["user", "enabled", "password", "scram", "roles", "groups", "limits"]} empty="No user is in the cluster's policy." />
    <h2>Roles</h2><${Answered} state=${roles} name="roles" caption="Roles" columns=${["role", "priority", "rules"]} empty="No role." />
    <h2>Bans</h2><${Answered} state=${bans} name="bans" caption="Bans" columns=${["kind", "value", "until_utc", "reason"]} empty="Nobody is banned." />
    <div class="row">
      <label>kind <select value=${ban.kind} onChange=${(event) => setBan({ ...ban, kind: event.target.value })}>${["client_id", "user", "address", "network", "certificate"].map((kind) => html`<option key=${kind} value=${kind}>${kind}</option>`)}</select></label>
      <label>value <input value=${ban.value} onInput=${(event) => setBan({ ...ban, value: event.target.value })} /></label>
      <label>reason <input value=${ban.reason} onInput=${(event) => setBan({ ...ban, reason: event.target.value })} /></label>
      <${Change} label="Ban" method="POST" path="/bans" body=${ban} danger=${true} enabled=${may && Boolean(ban.value)} />
      <${Change} label="Take back" method="DELETE" path="/bans" query=${{ kind: ban.kind, value: ban.value }} enabled=${may && Boolean(ban.value)} />
    </div>
    <${Copies} cli="stratamq user list" path="/users" />`;
}

export function Tokens({ me, beat }) {
  const state = useAnswer("/tokens", { count: 100 }, beat);
  const rows = (state.answer && state.answer.tokens) || [];
  return html`<h1>Tokens</h1><p class="question">Who may ask this service?</p>
    <${Answered} state=${state} name="tokens" caption="Tokens" columns=${["token", "role", "made_utc", "until_utc"]} empty="No token: stratamq token create makes one." />
    <div class="row">${rows.map((row) => html`<${Change} key=${row.token} label=${`Revoke ${shown("", row.token)}`} method="DELETE" path=${`/tokens/${encodeURIComponent(row.token)}`} danger=${true} enabled=${me.role === "admin"} />`)}</div>
    <${Copies} cli="stratamq token list" path="/tokens" />`;
}
