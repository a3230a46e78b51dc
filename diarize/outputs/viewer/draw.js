// Everything on the two canvases, for the stretch from state.from to state.to.

const OVERVIEW = document.getElementById("overview");
const CANVAS = document.getElementById("lanes");
const WAVE_HEIGHT = 100;
const LANE_HEIGHT = 46;
const OVERLAP_HEIGHT = 30;
const AXIS_HEIGHT = 24;
const OVERLAP_TOP = WAVE_HEIGHT + LABELS.length * LANE_HEIGHT;
const HEIGHT = OVERLAP_TOP + OVERLAP_HEIGHT + AXIS_HEIGHT;
CANVAS.style.height = `${HEIGHT}px`;
// Steps of the time axis in seconds.
const STEPS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200];

let theme = {};

function readTheme() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["ink", "soft", "line", "lane", "quiet", "accent", "overlap", "panel"]) {
    theme[name] = style.getPropertyValue(`--${name}`).trim();
  }
}

function prepare(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return [pen, width, height];
}

function x(time, width) {
  return ((time - state.from) / (state.to - state.from)) * width;
}

// A waveform in the colours of who holds the floor; `from` and `to` in seconds.
function drawWave(pen, width, top, height, from, to) {
  const list = DOC.exclusive;
  const seconds = (to - from) / width;
  let index = firstAfter(list, from);
  for (let column = 0; column < width; column++) {
    const time = from + column * seconds;
    while (index < list.length && list[index].end <= time) index++;
    const turn = list[index];
    pen.fillStyle = turn && turn.start < time + seconds ? colour(turn.speaker) : theme.quiet;
    const size = Math.max(1, loudness(time, time + seconds) * height);
    pen.fillRect(column, top + (height - size) / 2, 1, size);
  }
}

function drawOverview() {
  const [pen, width, height] = prepare(OVERVIEW);
  drawWave(pen, width, 6, height - 12, 0, END);
  const left = (state.from / END) * width;
  const right = (state.to / END) * width;
  if (right - left < width - 0.5) {
    pen.fillStyle = theme.panel;
    pen.globalAlpha = 0.65;
    pen.fillRect(0, 0, left, height);
    pen.fillRect(right, 0, width - right, height);
    pen.globalAlpha = 1;
    pen.strokeStyle = theme.accent;
    pen.lineWidth = 2;
    pen.strokeRect(left + 1, 1, Math.max(2, right - left - 2), height - 2);
  }
  pen.fillStyle = theme.line;
  pen.fillRect(0, height - 1, width, 1);
}

function bar(pen, left, right, top, height) {
  pen.beginPath();
  pen.roundRect(left, top, Math.max(1.5, right - left), height, Math.min(4, Math.max(0, (right - left) / 2)));
  pen.fill();
}

function drawLanes() {
  const [pen, width] = prepare(CANVAS);
  drawWave(pen, width, 8, WAVE_HEIGHT - 16, state.from, state.to);
  LABELS.forEach((label, row) => {
    const top = WAVE_HEIGHT + row * LANE_HEIGHT;
    pen.fillStyle = theme.line;
    pen.fillRect(0, top, width, 1);
    pen.fillStyle = theme.lane;
    pen.fillRect(0, top + 8, width, LANE_HEIGHT - 15);
    pen.fillStyle = colour(label);
    const list = lane(label);
    for (let index = firstAfter(list, state.from); index < list.length && list[index].start < state.to; index++) {
      bar(pen, x(list[index].start, width), x(list[index].end, width), top + 8, LANE_HEIGHT - 15);
    }
  });
  drawOverlaps(pen, width);
  drawAxis(pen, width);
  drawSelection(pen, width);
}

function drawOverlaps(pen, width) {
  pen.fillStyle = theme.line;
  pen.fillRect(0, OVERLAP_TOP, width, 1);
  pen.fillStyle = theme.overlap;
  for (let index = firstAfter(OVERLAPS, state.from); index < OVERLAPS.length; index++) {
    const { start, end } = OVERLAPS[index];
    if (start >= state.to) break;
    const left = x(start, width);
    const right = x(end, width);
    bar(pen, left, right, OVERLAP_TOP + 10, 10);
    if (state.exclusive) continue;
    pen.globalAlpha = 0.16;
    pen.fillRect(left, WAVE_HEIGHT, Math.max(1, right - left), OVERLAP_TOP - WAVE_HEIGHT);
    pen.globalAlpha = 1;
  }
}

function drawAxis(pen, width) {
  const top = OVERLAP_TOP + OVERLAP_HEIGHT;
  pen.fillStyle = theme.line;
  pen.fillRect(0, top, width, 1);
  const wanted = ((state.to - state.from) / width) * 90;
  const step = STEPS.find((value) => value >= wanted) || STEPS[STEPS.length - 1] * Math.ceil(wanted / 7200);
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  for (let tick = Math.ceil(state.from / step); tick * step <= state.to; tick++) {
    const at = x(tick * step, width);
    pen.fillStyle = theme.quiet;
    pen.fillRect(at, top, 1, 6);
    pen.fillStyle = theme.soft;
    const text = clock(tick * step, step < 1 ? 1 : 0);
    if (at + pen.measureText(text).width + 4 < width) pen.fillText(text, at + 4, top + 13);
  }
}

function drawSelection(pen, width) {
  const turn = turns()[state.selected];
  if (!turn) return;
  const top = WAVE_HEIGHT + LABELS.indexOf(turn.speaker) * LANE_HEIGHT;
  const left = x(turn.start, width);
  pen.strokeStyle = theme.ink;
  pen.lineWidth = 2;
  pen.beginPath();
  pen.roundRect(left, top + 7, Math.max(3, x(turn.end, width) - left), LANE_HEIGHT - 13, 4);
  pen.stroke();
}

let frame = 0;

// Drawn once before the next picture of the screen, however often it is asked for.
function redraw() {
  if (frame) return;
  frame = requestAnimationFrame(() => {
    frame = 0;
    drawOverview();
    drawLanes();
    placeHead();
  });
}
