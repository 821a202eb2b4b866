// Pages from the cluster's own verbs: ring, routers, members, nodes, users, tokens.

import { html, useState } from "../vendor/preact-htm.js";
import { useAnswer } from "../load.js";
import { Answered, Asking, Change, Copies, Facts, Failure, Partial, Table } from "../parts.js";
import { counted, printable, shown } from "../words.js";

const tables = (answer) => Object.entries(answer || {}).filter(([, value]) => Array.isArray(value) && value.length && typeof value[0] === "object");
const facts = (answer) => Object.fromEntries(Object.entries(answer || {}).filter(([, value]) => !Array.isArray(value) || typeof value[0] !== "object"));
const capital = (name) => name[0].toUpperCase() + name.slice(1).replaceAll("_", " ");
const columns = (rows) => [...new Set(rows.flatMap((row) => Object.keys(row)))];

export function Plain({ title, question, path, query = {}, cli, beat = 0, children }) {
  const { answer, problem } = useAnswer(path, query, beat);
  return html`<h1>${title}</h1><p class="question">${question}</p><${Failure} problem=${problem} />
    ${answer ? html`<${Facts} facts=${facts(answer)} />` : problem ? null : html`<p role="status">Asking …</p>`}
    ${children}
    ${tables(answer).map(([name, rows]) => html`<${Table} key=${name} caption=${capital(name)} rows=${rows} columns=${columns(rows)} />`)}
    <${Copies} cli=${cli} path=${path} query=${query} />`;
}

// Many buttons with one stop for Tab; arrows, Home and End go within.
function Grid({ label, cells }) {
  const [at, setAt] = useState(0);
  const here = Math.min(at, cells.length - 1);
  const move = (event) => {
    const all = [...event.currentTarget.children];
    const wide = Math.max(1, all.filter((one) => one.offsetTop === all[0].offsetTop).length);
    const to = { ArrowRight: here + 1, ArrowLeft: here - 1, ArrowDown: here + wide, ArrowUp: here - wide, Home: 0, End: all.length - 1 }[event.key];
    if (to === undefined || !all[to]) return;
    event.preventDefault();
    setAt(to);
    all[to].focus();
  };
  return html`<div class="grid" role="group" aria-label=${label} onKeyDown=${move}>${cells.map(({ id, name, text, kind, pressed, act }, number) => html`<button type="button" key=${id} class=${kind} tabindex=${number === here ? 0 : -1} aria-pressed=${pressed} title=${name} aria-label=${name} onFocus=${() => setAt(number)} onClick=${act}>${text}</button>`)}</div>`;
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
  const said = (row) => `partition ${row.partition} of ${row.primary || "nobody"}: ${counted(row.in_sync.length, "copy", "copies")} in sync${row.state !== "ok" ? `, ${row.state}` : ""}${row.joining.length ? `, on its way to ${row.joining.join(", ")}` : ""}`;
  return html`<h1>Ring</h1><p class="question">Where is everything, and what would move?</p><${Failure} problem=${problem} />
    <form class="row" onSubmit=${(event) => { event.preventDefault(); go({ ...query, name }); }}>
      <label>client identifier or topic <input value=${name} onInput=${(event) => setName(event.target.value)} /></label><button type="submit">Where does it live?</button>
    </form>
    <${Asking} state=${explained} wanted=${query.name} /><${Failure} problem=${explained.problem} />${explained.answer ? html`<${Facts} facts=${explained.answer} />` : null}
    <h2>Rebalance</h2>${status.answer ? html`<${Facts} facts=${facts(status.answer)} />` : null}
    <div class="row">
      <button type="button" onClick=${() => go({ ...query, plan: "1" })}>What would move?</button>
      <${Change} label="Rebalance" method="POST" path="/ring/rebalance" body=${{}} enabled=${may} />
      <${Change} label="Pause" method="POST" path="/ring/pause" enabled=${may} /><${Change} label="Resume" method="POST" path="/ring/resume" enabled=${may} />
      <${Change} label="Abort" method="POST" path="/ring/abort" danger=${true} enabled=${may} />
    </div>
    <${Asking} state=${plan} wanted=${query.plan} /><${Failure} problem=${plan.problem} />
    ${plan.answer ? html`<${Facts} facts=${facts(plan.answer)} />${tables(plan.answer).map(([title, moves]) => html`<${Table} key=${title} caption=${capital(title)} rows=${moves} columns=${columns(moves)} />`)}` : null}
    <h2>Partitions</h2><p class="question">By primary; ! says that something is wrong with one, → that a copy is on its way.</p>
    <${Asking} state=${{ answer, problem }} wanted=${true} />${primaries.map((primary) => html`<h3 key=${primary}>${printable(primary || "Without primary")}: ${counted(rows.filter((row) => row.primary === primary).length, "partition")}</h3>
      <${Grid} label=${`Partitions of ${primary || "nobody"}`} cells=${rows.filter((row) => row.primary === primary).map((row) => ({
        id: row.partition, name: said(row), kind: row.state !== "ok" || row.joining.length ? "warn" : "", pressed: String(row.partition) === query.partition,
        text: `${row.partition}${row.joining.length ? "→" : row.state !== "ok" ? "!" : ""}`, act: () => go({ ...query, partition: row.partition }),
      }))} />`)}
    ${query.partition ? html`<h2>Partition ${printable(query.partition)}</h2><${Facts} facts=${rows.find((row) => String(row.partition) === query.partition) || {}} />` : null}
    <${Copies} cli="stratamq ring show" path="/ring" />`;
}

// What the map says of each node, and what the node says of itself.
export function Nodes({ me, beat, rates = {} }) {
  const { answer, problem } = useAnswer("/nodes", {}, beat);
  const told = useAnswer("/stats", { columns: "node,version,started_at,at,ready,why_not_ready,disk_free_bytes,rss_bytes,open_files", limit: 1000 }, beat);
  const own = Object.fromEntries(((told.answer && told.answer.rows) || []).map((row) => [row.node, row]));
  const rows = ((answer && answer.nodes) || []).map((row) => {
    const figures = own[row.node] || {};
    const [into, out] = rates[row.node] || [];
    const uptime_s = figures.started_at ? (Date.parse(figures.at) - Date.parse(figures.started_at)) / 1000 : undefined;
    return { ...row, ...figures, uptime_s, in_per_s: row.tier === "edge" ? into : undefined, out_per_s: row.tier === "edge" ? out : undefined, why_not_ready: (figures.why_not_ready || []).join("; ") };
  });
  const [node, setNode] = useState("");
  const may = me.role !== "viewer";
  return html`<h1>Nodes</h1><p class="question">What runs, and in which state?</p><${Failure} problem=${problem} /><${Failure} problem=${told.problem} /><${Partial} page=${told.answer} />
    ${answer ? html`<${Table} caption="Nodes" rows=${rows} mark=${stateMark} columns=${["node", "tier", "state", "gossip", "ready", "why_not_ready", "version", "uptime_s", "connected", "in_per_s", "out_per_s", "primaries", "replicas", "joining", "load", "disk_free_bytes", "rss_bytes", "open_files", "lease_s", "lease_left_s", "map_epoch", "weight", "zone", "address"]} />` : problem ? null : html`<p role="status">Asking …</p>`}
    <h2>Maintenance</h2>
    <div class="row"><label>node <select value=${node} onChange=${(event) => setNode(event.target.value)}><option value="">choose</option>${rows.map((row) => html`<option key=${row.node} value=${row.node}>${row.node}</option>`)}</select></label>
      ${node ? html`<${Change} label=${`Drain ${node}`} method="POST" path=${`/nodes/${encodeURIComponent(node)}/drain`} danger=${true} enabled=${may} />
      <${Change} label=${`Use ${node} again`} method="POST" path=${`/nodes/${encodeURIComponent(node)}/undrain`} enabled=${may} />` : null}
    </div>
    <${Copies} cli="stratamq node list" path="/nodes" />`;
}

const stateMark = (name, value) => ((name === "state" && value !== "active") || (name === "gossip" && value !== "alive") || (name === "ready" && value === false) ? "warn" : "");

// Consensus as each router knows it, and the leases and epochs that its leader keeps.
export function Routers({ beat }) {
  const { answer, problem } = useAnswer("/cluster", {}, beat);
  const raft = useAnswer("/raft", {}, beat);
  const rows = ((raft.answer && raft.answer.rows) || []).map((row) => ({ ...row, shards: (row.shards || []).length, voters: (row.voters || []).length, learners: (row.learners || []).join(", ") }));
  const leader = rows.find((row) => row.leases && Object.keys(row.leases).length);
  const leases = leader ? Object.entries(leader.leases).map(([node, left]) => ({ node, lease_left_s: left, acknowledged_epoch: (leader.epochs || {})[node] })) : [];
  return html`<h1>Routers</h1><p class="question">Who decides, and whose lease runs?</p><${Failure} problem=${problem} />
    <${Answered} state=${raft} from=${() => rows} caption="Routers" columns=${["node", "state", "term", "leader", "voted_for", "last_index", "commit_index", "applied_index", "snapshot_index", "shards", "voters", "learners"]} mark=${(name, value) => (name === "state" && value === "leader" ? "good" : "")} />
    ${leases.length ? html`<h2>Leases</h2><${Table} caption=${`Leases that ${leader.node} keeps`} rows=${leases} columns=${["node", "lease_left_s", "acknowledged_epoch"]} />` : null}
    ${answer ? html`<h2>Cluster</h2><${Facts} facts=${facts(answer)} />` : problem ? null : html`<p role="status">Asking …</p>`}
    <${Copies} cli="stratamq cluster status" path="/cluster" />`;
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
    <h2>Bans</h2><${Answered} state=${bans} name="bans" caption="Bans" columns=${["kind", "value", "until", "reason"]} empty="Nobody is banned." />
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
    <${Answered} state=${state} name="tokens" caption="Tokens" columns=${["token", "role", "made_at", "until"]} empty="No token: stratamq token create makes one." />
    <div class="row">${rows.map((row) => html`<${Change} key=${row.token} label=${`Revoke ${shown("", row.token)}`} method="DELETE" path=${`/tokens/${encodeURIComponent(row.token)}`} danger=${true} enabled=${me.role === "admin"} />`)}</div>
    <${Copies} cli="stratamq token list" path="/tokens" />`;
}
