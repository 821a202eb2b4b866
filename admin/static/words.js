// Values as people read them. Everything is text: nothing of a client's ever becomes markup.

export function seconds(value) {
  if (value === null || value === undefined) return "";
  if (value < 0) return "never";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 120) return `${Math.round(value * 10) / 10} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  if (value < 172800) return `${Math.round(value / 3600)} h`;
  return `${Math.round(value / 86400)} d`;
}

export function size(value) {
  if (value === null || value === undefined) return "";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) {
    value /= 1024;
    at += 1;
  }
  return `${at ? value.toFixed(1) : value} ${units[at]}`;
}

export function count(value) {
  return value === null || value === undefined ? "" : Number(value).toLocaleString("en-US").replaceAll(",", " ");
}

export function counted(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

// A time of the API, which is UTC: to the second, or as exactly as a trace has it.
const TIME = /^(\d{4}-\d{2}-\d{2})T(\d{2}:\d{2}:\d{2})(?:\.(\d+))?Z$/;
export function moment(text) {
  const [, day, clock, part] = TIME.exec(text || "") || [];
  return day ? `${day} ${clock}${part && part.length > 3 ? `.${part}` : ""}Z` : printable(String(text || ""));
}

// Names of numbers that count nothing: told as they are, so that they can be copied.
const NAMES = /(^|_)(session|number|partition|shard|seq|packet|epoch|incarnation|pid|crc32|term|identifier|id)$/;

// A value by the unit that its name ends with, as the API and the metrics name them.
export function shown(name, value) {
  if (value === null || value === undefined || value === "") return "";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (Array.isArray(value)) return value.map((one) => shown("", one)).join(", ");
  if (typeof value === "object") return Object.entries(value).map(([key, one]) => `${key}=${shown(key, one)}`).join(", ");
  if (typeof value === "number") {
    if (NAMES.test(name)) return String(value);
    if (name.endsWith("_per_s")) return count(Math.round(value * 10) / 10);
    if (name.endsWith("bytes_s")) return value ? `${size(value)} a second` : "no bound";
    if (name.endsWith("_s")) return seconds(value);
    if (/(^|_)bytes(_max)?$/.test(name)) return size(value);
    if (name.endsWith("_ms")) return `${Math.round(value * 100) / 100} ms`;
    return count(Math.round(value * 1000) / 1000);
  }
  if (/(^|_)(at|until|since|not_after)$/.test(name)) return moment(value);
  return printable(String(value));
}

// What a message carries, from base64: as text where it is text, else as hexadecimal digits.
export function decoded(text) {
  const bytes = Uint8Array.from(atob(text || ""), (letter) => letter.charCodeAt(0));
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
  }
}

// Control characters and those that turn a line around are shown as their numbers.
export function printable(text) {
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

export function heading(name) {
  return name.replace(/_per_s$/, "_a_second").replace(/_(s|ms|us|utc)$/, "").replaceAll("_", " ");
}
