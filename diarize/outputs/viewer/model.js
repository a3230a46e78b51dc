// What the page knows: the document, the names given to speakers, and questions about times.

const DATA = JSON.parse(document.getElementById("data").textContent);
const DOC = DATA.document;
const LABELS = DOC.speakers.map((item) => item.speaker);
const COLOURS = ["#3b7dd8", "#e0803a", "#3f9e5a", "#c2528b", "#8a63c9", "#b58a1b", "#2aa198", "#d1495b", "#6b8e23", "#7a6f5d"];

const state = {
  names: new Map(LABELS.map((label) => [label, label])),
  exclusive: DATA.exclusive,
  from: 0,
  to: 1,
  selected: -1,
};
const END = Math.max(DOC.offset + DOC.duration, ...lastEnds(), 0.1);
state.to = END;

function lastEnds() {
  return DOC.turns.length ? [DOC.turns.reduce((end, turn) => Math.max(end, turn.end), 0)] : [];
}

function turns() {
  return state.exclusive ? DOC.exclusive : DOC.turns;
}

function colour(label) {
  const index = LABELS.indexOf(label);
  // Beyond the table, hues by the golden angle stay apart from their neighbours.
  return index < COLOURS.length ? COLOURS[index] : `hsl(${(index * 137.5) % 360} 52% 52%)`;
}

const LANES = { plain: byLabel(DOC.turns), exclusive: byLabel(DOC.exclusive) };

function byLabel(list) {
  const lanes = new Map(LABELS.map((label) => [label, []]));
  for (const turn of list) lanes.get(turn.speaker)?.push(turn);
  return lanes;
}

function lane(label) {
  return (state.exclusive ? LANES.exclusive : LANES.plain).get(label);
}

// Index of the first of `list`, sorted by start and end, that ends after `time`.
function firstAfter(list, time) {
  let low = 0;
  let high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle].end > time) high = middle;
    else low = middle + 1;
  }
  return low;
}

// The turn of a speaker at a time, or none.
function turnAt(label, time) {
  const list = lane(label);
  const turn = list[firstAfter(list, time)];
  return turn && turn.start <= time ? turn : null;
}

// Index of the last of all turns that has begun at `time`, -1 before the first.
function begunAt(time) {
  const list = turns();
  let low = 0;
  let high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle].start > time + 1e-6) high = middle;
    else low = middle + 1;
  }
  return low - 1;
}

// Stretches in which at least two speakers talk.
const OVERLAPS = (() => {
  const edges = [];
  for (const turn of DOC.turns) edges.push([turn.start, 1], [turn.end, -1]);
  edges.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const found = [];
  let active = 0;
  let since = 0;
  for (const [time, change] of edges) {
    if (active < 2 && active + change >= 2) since = time;
    else if (active >= 2 && active + change < 2 && time > since) found.push({ start: since, end: time });
    active += change;
  }
  return found;
})();

const PEAKS = (() => {
  const text = atob(DATA.peaks.values);
  const values = new Uint8Array(text.length);
  for (let index = 0; index < text.length; index++) values[index] = text.charCodeAt(index);
  return { values, seconds: DATA.peaks.seconds };
})();

// Loudness in [0, 1] of a stretch: its largest value, so that no short sound is lost between two pixels.
function loudness(start, end) {
  const first = Math.max(0, Math.floor(start / PEAKS.seconds));
  const last = Math.min(PEAKS.values.length, Math.max(first + 1, Math.ceil(end / PEAKS.seconds)));
  let top = 0;
  for (let index = first; index < last; index++) if (PEAKS.values[index] > top) top = PEAKS.values[index];
  return top / 255;
}

function clock(seconds, digits = 1) {
  const unit = 10 ** digits;
  const ticks = Math.round(Math.max(0, seconds) * unit);
  const whole = Math.floor(ticks / unit);
  const two = (value) => String(value).padStart(2, "0");
  const fraction = digits ? "." + String(ticks % unit).padStart(digits, "0") : "";
  return `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}${fraction}`;
}

function counted(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}
