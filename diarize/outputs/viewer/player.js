// Sound, the list of turns, and the stretch that is in view.

const AUDIO = document.getElementById("audio");
const PLAY = document.getElementById("play");
const HEAD = document.getElementById("head");
const NOTICE = document.getElementById("notice");
const TURNS = document.getElementById("turns");
const ROWS = document.getElementById("rows");
const ROW_HEIGHT = 30;

// Where the head stands while there is no sound to say it.
let silentTime = 0;

function now() {
  return hasSound() ? AUDIO.currentTime : silentTime;
}

function hasSound() {
  return AUDIO.readyState >= 1 && !AUDIO.error;
}

function notice(text) {
  NOTICE.textContent = text;
  NOTICE.hidden = !text;
}

function seek(time) {
  silentTime = Math.min(Math.max(0, time), END);
  if (hasSound()) AUDIO.currentTime = silentTime;
  show(silentTime);
  tick();
}

function play() {
  if (!AUDIO.src || AUDIO.error) {
    missing();
    return;
  }
  AUDIO.play().catch((error) => {
    if (error.name !== "AbortError") missing();
  });
}

function toggle() {
  if (AUDIO.paused) play();
  else AUDIO.pause();
}

function missing() {
  notice(
    DATA.audio.name
      ? `“${DATA.audio.name}” is not beside this page, or this browser cannot play it. Choose the file under Recording.`
      : "Choose a recording to play under Recording.",
  );
}

function load(url, name) {
  AUDIO.src = url;
  document.getElementById("source").textContent = name;
  notice("");
}

function placeHead() {
  const width = CANVAS.clientWidth;
  const at = x(now(), width);
  HEAD.hidden = at < 0 || at > width;
  HEAD.style.transform = `translateX(${at}px)`;
}

// Moves the view so that `time` is in it.
function show(time) {
  const span = state.to - state.from;
  if (time < state.from || time > state.to) look(time - span * 0.1, span);
}

function look(from, span) {
  const length = Math.min(Math.max(span, Math.min(0.5, END)), END);
  state.from = Math.min(Math.max(0, from), END - length);
  state.to = state.from + length;
  redraw();
}

function zoom(factor, around = now()) {
  const middle = around >= state.from && around <= state.to ? around : (state.from + state.to) / 2;
  look(middle - (middle - state.from) * factor, (state.to - state.from) * factor);
}

function tick() {
  const time = now();
  document.getElementById("clock").textContent = `${clock(time)} / ${clock(END)}`;
  placeHead();
  for (const row of document.querySelectorAll(".speaker")) {
    row.classList.toggle("active", turnAt(row.dataset.label, time) !== null);
  }
  if (AUDIO.paused) return;
  if (document.getElementById("follow").checked) {
    const span = state.to - state.from;
    if (time > state.from + span * 0.95 && state.to < END) look(time - span * 0.05, span);
    select(begunAt(time), false);
  }
  requestAnimationFrame(tick);
}

// Marks a turn and shows it; `andPlay` starts the sound there.
function select(index, andPlay) {
  const list = turns();
  if (!list.length) return;
  const next = Math.min(Math.max(0, index), list.length - 1);
  if (next !== state.selected) {
    state.selected = next;
    const top = next * ROW_HEIGHT;
    if (top < TURNS.scrollTop || top + ROW_HEIGHT > TURNS.scrollTop + TURNS.clientHeight) {
      TURNS.scrollTop = top - TURNS.clientHeight / 3;
    }
    listRows();
    redraw();
  }
  if (andPlay) {
    seek(list[next].start);
    play();
  }
}

// Only the rows in sight are elements, so that ten thousand turns cost no more than twenty.
function listRows() {
  const list = turns();
  ROWS.style.height = `${list.length * ROW_HEIGHT}px`;
  const first = Math.max(0, Math.floor(TURNS.scrollTop / ROW_HEIGHT) - 5);
  const last = Math.min(list.length, Math.ceil((TURNS.scrollTop + TURNS.clientHeight) / ROW_HEIGHT) + 5);
  const rows = [];
  for (let index = first; index < last; index++) rows.push(rowOf(list[index], index, list.length));
  ROWS.replaceChildren(...rows);
  document.getElementById("turns-title").textContent = counted(list.length, "turn");
  if (state.selected >= first && state.selected < last) TURNS.setAttribute("aria-activedescendant", `turn-${state.selected}`);
  else TURNS.removeAttribute("aria-activedescendant");
}

function rowOf(turn, index, count) {
  const row = element("div", "row");
  row.id = `turn-${index}`;
  row.setAttribute("role", "option");
  row.setAttribute("aria-selected", String(index === state.selected));
  row.setAttribute("aria-setsize", String(count));
  row.setAttribute("aria-posinset", String(index + 1));
  row.style.top = `${index * ROW_HEIGHT}px`;
  const dot = element("span", "dot");
  dot.style.background = colour(turn.speaker);
  row.append(
    dot,
    element("span", "name", state.names.get(turn.speaker)),
    element("span", "number", clock(turn.start)),
    element("span", "number end", clock(turn.end)),
    element("span", "number", `${(turn.end - turn.start).toFixed(1)} s`),
  );
  row.addEventListener("click", () => select(index, true));
  return row;
}

function element(kind, name, text = "") {
  const made = document.createElement(kind);
  made.className = name;
  made.textContent = text;
  return made;
}
