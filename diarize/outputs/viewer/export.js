// The result with the names as they stand, in the forms that the command line writes too.

const EXPORTS = { rttm: ["text/plain", asRttm], json: ["application/json", asJson], csv: ["text/csv", asCsv] };

function milliseconds(seconds) {
  return Math.round(seconds * 1000);
}

function fixed(ticks) {
  return (ticks / 1000).toFixed(3);
}

function field(text) {
  return text.trim().replace(/\s+/gu, "_");
}

function asRttm() {
  return turns()
    .map((turn) => {
      const start = milliseconds(turn.start);
      const length = milliseconds(turn.end) - start;
      const name = field(state.names.get(turn.speaker));
      return `SPEAKER ${field(DOC.file)} 1 ${fixed(start)} ${fixed(length)} <NA> <NA> ${name} <NA> <NA>\n`;
    })
    .join("");
}

function quoted(text) {
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function asCsv() {
  const rows = turns().map((turn) => {
    const start = milliseconds(turn.start);
    const end = milliseconds(turn.end);
    const name = quoted(state.names.get(turn.speaker));
    return `${quoted(DOC.file)},${fixed(start)},${fixed(end)},${fixed(end - start)},${name}\n`;
  });
  return "file,start,end,duration,speaker\n" + rows.join("");
}

function asJson() {
  const rename = (item) => ({ ...item, speaker: state.names.get(item.speaker) });
  // Speakers who got the same name are one speaker from here on.
  const speakers = new Map();
  for (const item of DOC.speakers.map(rename)) {
    const known = speakers.get(item.speaker);
    if (known) {
      known.seconds = Number((known.seconds + item.seconds).toFixed(3));
      known.turns += item.turns;
    } else {
      speakers.set(item.speaker, item);
    }
  }
  const renamed = {
    ...DOC,
    speakers: [...speakers.values()],
    turns: DOC.turns.map(rename),
    exclusive: DOC.exclusive.map(rename),
  };
  return JSON.stringify(renamed, null, 2) + "\n";
}

function save(kind) {
  const [type, text] = EXPORTS[kind];
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text()], { type: `${type};charset=utf-8` }));
  link.download = `${DOC.file.replace(/[\/\\:\u0000-\u001f]/gu, "_")}.${kind}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
