// What the user does: clicks, drags, keys, names; and the page as it is at first.

const TIP = document.getElementById("tip");
const byId = (name) => document.getElementById(name);

function describe() {
  const speech = DOC.speakers.reduce((sum, item) => sum + item.seconds, 0);
  const share = DOC.duration ? Math.round((100 * DOC.overlap) / DOC.duration) : 0;
  byId("facts").textContent = [
    clock(DOC.duration),
    counted(DOC.speakers.length, "speaker"),
    counted(DOC.turns.length, "turn"),
    `overlap ${DOC.overlap.toFixed(1)} s (${share} %)`,
  ].join(" · ");
  byId("footer").textContent =
    `diarize ${DOC.versions.diarize} · model ${DOC.model} · ${DOC.device} · mode ${DOC.mode}. ` +
    "This page holds everything it shows and uses no network.";
  const labels = byId("labels");
  DOC.speakers.forEach((item, index) => labels.append(speakerRow(item, index, speech)));
  labels.append(element("div", "label overlap-label", "Overlap"), element("div", "label axis-label"));
  CANVAS.setAttribute(
    "aria-label",
    `Waveform and a lane for each speaker: ${DOC.speakers.map((item) => `${item.speaker} ${clock(item.seconds)}`).join(", ")}`,
  );
  byId("exclusive").checked = state.exclusive;
  if (DOC.warnings.length) {
    byId("warnings").hidden = false;
    byId("warnings").querySelector("ul").replaceChildren(...DOC.warnings.map((text) => element("li", "", text)));
  }
  if (!PEAKS.values.length) document.querySelector(".wave-label").textContent = "Waveform not available";
}

function speakerRow(item, index, speech) {
  const row = element("div", "speaker");
  row.dataset.label = item.speaker;
  const dot = element("span", "dot");
  dot.style.background = colour(item.speaker);
  const name = element("input", "");
  name.value = item.speaker;
  name.spellcheck = false;
  name.setAttribute("aria-label", `Name of speaker ${index + 1}`);
  name.addEventListener("change", () => {
    const text = name.value.trim().replace(/\s+/gu, " ");
    state.names.set(item.speaker, text || item.speaker);
    name.value = state.names.get(item.speaker);
    listRows();
  });
  name.addEventListener("keydown", (event) => {
    if (event.key === "Enter") name.blur();
    if (event.key === "Escape") {
      name.value = state.names.get(item.speaker);
      name.blur();
    }
  });
  const share = speech ? Math.round((100 * item.seconds) / speech) : 0;
  row.append(dot, name, element("span", "total", `${clock(item.seconds)} · ${share} % · ${counted(item.turns, "turn")}`));
  return row;
}

function timeAt(event) {
  const box = CANVAS.getBoundingClientRect();
  return state.from + ((event.clientX - box.left) / box.width) * (state.to - state.from);
}

function turnUnder(event) {
  const row = Math.floor((event.clientY - CANVAS.getBoundingClientRect().top - WAVE_HEIGHT) / LANE_HEIGHT);
  return row >= 0 && row < LABELS.length ? turnAt(LABELS[row], timeAt(event)) : null;
}

let drag = null;

CANVAS.addEventListener("pointerdown", (event) => {
  if (event.button !== 0) return;
  drag = { at: event.clientX, from: state.from, moved: false };
  CANVAS.setPointerCapture(event.pointerId);
});
CANVAS.addEventListener("pointermove", (event) => {
  if (drag) {
    if (Math.abs(event.clientX - drag.at) > 4) drag.moved = true;
    const span = state.to - state.from;
    if (drag.moved) look(drag.from - ((event.clientX - drag.at) / CANVAS.clientWidth) * span, span);
  }
  tip(event);
});
CANVAS.addEventListener("pointerup", (event) => {
  const held = drag;
  drag = null;
  if (!held || held.moved) return;
  const turn = turnUnder(event);
  if (!turn) {
    seek(timeAt(event));
  } else if (event.shiftKey) {
    select(turns().indexOf(turn), false);
    seek(timeAt(event));
    play();
  } else {
    select(turns().indexOf(turn), true);
  }
});
CANVAS.addEventListener("pointercancel", () => (drag = null));
CANVAS.addEventListener("pointerleave", () => (TIP.hidden = true));
CANVAS.addEventListener(
  "wheel",
  (event) => {
    const span = state.to - state.from;
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      zoom(Math.exp(event.deltaY * 0.002), timeAt(event));
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      look(state.from + ((event.deltaX || event.deltaY) / CANVAS.clientWidth) * span, span);
    }
  },
  { passive: false },
);

function tip(event) {
  const turn = turnUnder(event);
  TIP.textContent = turn ? saying(turn) : clock(timeAt(event));
  TIP.hidden = false;
  const box = byId("stage").getBoundingClientRect();
  const left = Math.min(event.clientX - box.left + 12, box.width - TIP.offsetWidth - 4);
  TIP.style.transform = `translate(${Math.max(0, left)}px, ${event.clientY - box.top + 16}px)`;
}

function saying(turn) {
  const sure = turn.confidence === null ? "" : `, confidence ${turn.confidence.toFixed(2)}`;
  return `${state.names.get(turn.speaker)}, ${clock(turn.start)} to ${clock(turn.end)}${sure}`;
}

function moveOverview(event) {
  const box = OVERVIEW.getBoundingClientRect();
  const time = ((event.clientX - box.left) / box.width) * END;
  const span = state.to - state.from;
  if (span < END) look(time - span / 2, span);
  else seek(time);
}

OVERVIEW.addEventListener("pointerdown", (event) => {
  OVERVIEW.setPointerCapture(event.pointerId);
  moveOverview(event);
});
OVERVIEW.addEventListener("pointermove", (event) => event.buttons & 1 && moveOverview(event));

const KEYS = {
  " ": toggle,
  ArrowLeft: () => seek(now() - 5),
  ArrowRight: () => seek(now() + 5),
  j: () => select(state.selected + 1, true),
  k: () => select(state.selected - 1, true),
  "+": () => zoom(0.5),
  "=": () => zoom(0.5),
  "-": () => zoom(2),
  0: () => look(0, END),
};

document.addEventListener("keydown", (event) => {
  const target = event.target;
  if (event.ctrlKey || event.metaKey || event.altKey || target.matches("select, input:not([type=checkbox])")) return;
  // Space on a button or box is theirs.
  if (event.key === " " && target.matches("button, input")) return;
  const action = KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!action) return;
  event.preventDefault();
  action();
});
TURNS.addEventListener("keydown", (event) => {
  const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };
  if (event.key in steps) select(Math.max(-1, state.selected) + steps[event.key], false);
  else if (event.key === "Enter") select(state.selected, true);
  else return;
  event.preventDefault();
});
TURNS.addEventListener("scroll", listRows, { passive: true });

PLAY.addEventListener("click", toggle);
byId("zoom-in").addEventListener("click", () => zoom(0.5));
byId("zoom-out").addEventListener("click", () => zoom(2));
byId("zoom-fit").addEventListener("click", () => look(0, END));
byId("speed").addEventListener("change", (event) => (AUDIO.playbackRate = Number(event.target.value)));
byId("exclusive").addEventListener("change", (event) => {
  state.exclusive = event.target.checked;
  state.selected = -1;
  listRows();
  redraw();
});
byId("file").addEventListener("change", (event) => {
  const file = event.target.files[0];
  if (file) load(URL.createObjectURL(file), file.name);
});
byId("theme").addEventListener("click", () => {
  const dark = getComputedStyle(document.documentElement).getPropertyValue("--dark").trim() === "1";
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  readTheme();
  redraw();
});
for (const button of document.querySelectorAll("[data-export]")) {
  button.addEventListener("click", () => save(button.dataset.export));
}
AUDIO.addEventListener("play", () => {
  PLAY.textContent = "Pause";
  tick();
});
AUDIO.addEventListener("pause", () => (PLAY.textContent = "Play"));
AUDIO.addEventListener("error", missing);
AUDIO.addEventListener("loadedmetadata", () => {
  AUDIO.currentTime = silentTime;
  AUDIO.playbackRate = Number(byId("speed").value);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  readTheme();
  redraw();
});
new ResizeObserver(redraw).observe(byId("stage"));

readTheme();
describe();
listRows();
if (DATA.audio.src) load(DATA.audio.src, DATA.audio.embedded ? `${DATA.audio.name}, held by this page` : DATA.audio.name);
tick();
redraw();
