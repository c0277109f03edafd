// GET /metrics: the Prometheus text format, and rates from two readings of it.

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;
const ESCAPES = {n: "\n"};

function parse_labels(text) {
  const labels = {};
  for (const [, name, value] of text.matchAll(LABEL)) {
    labels[name] = value.replace(/\\(.)/g, (_, letter) => ESCAPES[letter] ?? letter);
  }
  return labels;
}

function parse_value(text) {
  if (text === "+Inf") return Infinity;
  if (text === "-Inf") return -Infinity;
  return Number(text);
}

function has(labels, wanted) {
  return Object.entries(wanted).every(([name, value]) => labels[name] === value);
}

// One scrape. Names are given without "lockstep_"; `when` is in seconds, of any clock that does not
// jump. Series that this server does not have are null, so that older and newer ones are shown.
export class Reading {
  constructor(text, when) {
    this.when = when;
    this.families = new Map();
    for (const line of text.split("\n")) {
      if (line.startsWith("#")) continue;
      const match = LINE.exec(line);
      if (match === null) continue;
      const name = match[1].replace(/^lockstep_/, "");
      if (!this.families.has(name)) this.families.set(name, []);
      this.families.get(name).push({labels: match[2], value: parse_value(match[3])});
    }
  }

  // The family's series whose labels include these, as {labels, value}.
  series(name, wanted = {}) {
    const found = [];
    for (const entry of this.families.get(name) ?? []) {
      // Labels are read when first asked for: most lines are buckets that nobody looks at.
      if (typeof entry.labels !== "object") entry.labels = parse_labels(entry.labels ?? "");
      if (has(entry.labels, wanted)) found.push(entry);
    }
    return found;
  }

  // Their sum; null if there is none.
  value(name, wanted = {}) {
    const series = this.series(name, wanted);
    return series.length === 0 ? null : series.reduce((sum, entry) => sum + entry.value, 0);
  }

  // Labels of the first series; {} if there is none.
  info(name) {
    return this.series(name)[0]?.labels ?? {};
  }
}

// How much a counter grew between two readings; null if one of them lacks it.
export function growth(before, now, name, wanted = {}) {
  const start = before.value(name, wanted);
  const end = now.value(name, wanted);
  return start === null || end === null ? null : Math.max(0, end - start);
}

// Growth of one counter per growth of another, null where the latter did not grow.
export function ratio(before, now, name, per_name, wanted = {}) {
  const amount = growth(before, now, name, wanted);
  const per = growth(before, now, per_name);
  return amount === null || !per ? null : amount / per;
}

// The quantile of what a histogram took in between two readings, linear within a bucket as
// Prometheus has it; null if it took in nothing.
export function quantile(before, now, name, share) {
  const counts = (reading) =>
    new Map(reading.series(`${name}_bucket`).map(({labels, value}) => [labels.le, value]));
  const start = counts(before);
  const buckets = [...counts(now)]
    .map(([limit, count]) => [parse_value(limit), count - (start.get(limit) ?? 0)])
    .sort((a, b) => a[0] - b[0]);
  const total = buckets.at(-1)?.[1] ?? 0;
  if (total <= 0) return null;
  let low = 0;
  let below = 0;
  for (const [limit, count] of buckets) {
    if (count >= share * total) {
      if (limit === Infinity) return low;
      return low + ((limit - low) * (share * total - below)) / Math.max(1e-9, count - below);
    }
    low = limit;
    below = count;
  }
  return low;
}
