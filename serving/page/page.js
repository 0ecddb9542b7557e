"use strict";
const $ = (id) => document.getElementById(id);
const RATE = 48000; // Hz of clips that the browser decodes
const READ_BY_SERVICE = /\.(wav|flac|ogg|oga|opus|mp3|aiff?|aifc|au)$/i;
const clips = { context: null, response: null }; // what will be sent
let limits = { max_seconds: 30, max_bytes: Infinity };

function authorization() {
  const token = $("token") ? $("token").value.trim() : "";
  return token ? { Authorization: `Bearer ${token}` } : {};
}

// What the service answers, or an error that people can read
async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, { ...options, headers: authorization() });
  } catch {
    throw new Error("The service cannot be reached.");
  }
  const body = await answer.json().catch(() => null);
  if (answer.ok && body) return body;
  throw new Error(body?.error?.message ?? `The service answered with status ${answer.status}.`);
}

async function learnLimits() {
  try {
    const about = await ask("v1/judge");
    limits = about;
    const names = about.dimensions.map((own) => own.name.replaceAll("_", " ")).join(", ");
    $("about").textContent = `Scores how well the voice of a spoken response fits its context: ${names}. ` +
      `Clips of up to ${about.max_seconds} s.`;
    $("level").hidden = $("level-label").hidden = !about.calibrated;
  } catch {
    // without token, or the judge is still being loaded: scoring will say so
  }
}

// ---------------------------------------------------------------- clips

// A WAV file, mono, 16 bit, of samples between -1 and 1
function toWav(samples, rate) {
  const view = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const text = (at, word) => [...word].forEach((letter, n) => view.setUint8(at + n, letter.charCodeAt(0)));
  text(0, "RIFF");
  view.setUint32(4, 36 + 2 * samples.length, true);
  text(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true); // PCM
  view.setUint16(22, 1, true); // mono
  view.setUint32(24, rate, true);
  view.setUint32(28, 2 * rate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  text(36, "data");
  view.setUint32(40, 2 * samples.length, true);
  samples.forEach((value, n) => view.setInt16(44 + 2 * n, Math.round(32767 * Math.max(-1, Math.min(1, value))), true));
  return new Blob([view], { type: "audio/wav" });
}

// Anything that the browser can decode, as WAV: the service needs no FFmpeg
async function decodeToWav(blob) {
  const sound = await new OfflineAudioContext(1, 1, RATE).decodeAudioData(await blob.arrayBuffer());
  const mean = new Float32Array(sound.length);
  for (let channel = 0; channel < sound.numberOfChannels; channel++) {
    sound.getChannelData(channel).forEach((value, n) => { mean[n] += value / sound.numberOfChannels; });
  }
  return { wav: toWav(mean, sound.sampleRate), seconds: sound.duration };
}

function setUp(card) {
  const name = card.dataset.clip;
  const file = card.querySelector("input[type=file]");
  const record = card.querySelector("[data-do=record]");
  const clear = card.querySelector("[data-do=clear]");
  const state = card.querySelector(".state");
  const player = card.querySelector("audio");
  let stopRecording = null;

  function say(text, bad = false) {
    state.textContent = text;
    state.classList.toggle("bad", bad);
  }

  function put(blob, text) {
    clips[name] = blob;
    if (player.src) URL.revokeObjectURL(player.src);
    player.hidden = clear.hidden = !blob;
    if (blob) player.src = URL.createObjectURL(blob);
    else player.removeAttribute("src");
    say(text);
  }

  file.addEventListener("change", async () => {
    const chosen = file.files[0];
    if (!chosen) return;
    if (READ_BY_SERVICE.test(chosen.name)) {
      put(chosen, chosen.name);
      return;
    }
    try {
      const { wav, seconds } = await decodeToWav(chosen);
      put(wav, `${chosen.name}, ${seconds.toFixed(1)} s`);
    } catch {
      put(null, "");
      say("This browser cannot read the file as sound.", true);
    }
  });

  clear.addEventListener("click", () => {
    file.value = "";
    put(null, "");
    record.focus();
  });

  async function start() {
    // what cleans voices for calls would change how they sound
    const audio = { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: false };
    const stream = await navigator.mediaDevices.getUserMedia({ audio });
    const lossless = "audio/webm;codecs=pcm";
    const kind = MediaRecorder.isTypeSupported(lossless) ? { mimeType: lossless } : { audioBitsPerSecond: 256000 };
    const recorder = new MediaRecorder(stream, kind);
    const pieces = [];
    recorder.addEventListener("dataavailable", (event) => pieces.push(event.data));
    const stopped = new Promise((done) => recorder.addEventListener("stop", done));
    recorder.start();
    const begun = performance.now();
    const clock = setInterval(() => {
      const seconds = (performance.now() - begun) / 1000;
      say(`Recording, ${seconds.toFixed(1)} of at most ${limits.max_seconds} s`);
      if (seconds > limits.max_seconds - 0.3) stopRecording?.();
    }, 100);
    record.textContent = "Stop";
    record.setAttribute("aria-pressed", "true");
    stopRecording = async () => {
      stopRecording = null;
      clearInterval(clock);
      recorder.stop();
      await stopped;
      stream.getTracks().forEach((track) => track.stop());
      record.textContent = "Record";
      record.setAttribute("aria-pressed", "false");
      try {
        const { wav, seconds } = await decodeToWav(new Blob(pieces, { type: recorder.mimeType }));
        file.value = "";
        put(wav, `Recorded, ${seconds.toFixed(1)} s`);
      } catch {
        say("The recording cannot be read.", true);
      }
    };
  }

  record.addEventListener("click", () => {
    if (stopRecording) {
      stopRecording();
      return;
    }
    if (!navigator.mediaDevices || !window.MediaRecorder) {
      say("Recording needs HTTPS, or this page on localhost.", true);
      return;
    }
    start().catch(() => say("The microphone cannot be used.", true));
  });
}

// ---------------------------------------------------------------- score

function add(parent, kind, text = "", style = "") {
  const element = document.createElement(kind);
  element.textContent = text;
  element.className = style;
  parent.append(element);
  return element;
}

function showScore(name, own, level) {
  const { minimum, maximum, higher_is_better: rises } = own.scale;
  const at = (value) => `${(100 * Math.max(0, Math.min(1, (value - minimum) / (maximum - minimum)))).toFixed(2)}%`;
  const part = add($("scores"), "div", "", "score");
  add(part, "h3", name.replaceAll("_", " "));
  const value = add(part, "p", own.score.toFixed(2), "value");
  add(value, "small", `of ${minimum} to ${maximum}`);
  if (own.label) add(value, "span", own.label, `mark ${["good", "excellent"].includes(own.label) ? "good" : "none"}`);
  const scale = add(part, "div", "", "scale");
  scale.setAttribute("aria-hidden", "true");
  if (own.low !== null && own.high !== null) {
    const range = add(scale, "div", "", "range");
    range.style.left = at(own.low);
    range.style.right = `calc(100% - ${at(own.high)})`;
  }
  add(scale, "div", "", "point").style.left = at(own.score);
  const ends = add(part, "div", "", "ends");
  ends.setAttribute("aria-hidden", "true");
  add(ends, "span", `${minimum} ${rises ? "very poor" : "excellent"}`);
  add(ends, "span", `${maximum} ${rises ? "excellent" : "very poor"}`);
  const known = [];
  if (own.low !== null && own.high !== null) {
    known.push(`${100 * level} % interval ${own.low.toFixed(2)} to ${own.high.toFixed(2)}`);
  }
  if (own.standard_error !== null) known.push(`standard error ${own.standard_error.toFixed(2)}`);
  add(part, "p", known.join(", ") || "The judge is not calibrated: nothing is known of the error.", "note");
  if (own.abstained) add($("warnings"), "li", `${name.replaceAll("_", " ")}: too unsure, the judge abstains.`);
}

function show(found) {
  for (const [name, own] of Object.entries(found.scores)) showScore(name, own, found.level);
  for (const warning of found.warnings) add($("warnings"), "li", warning.text);
  const heard = [...found.seconds.context.map((s) => `context ${s.toFixed(1)} s`),
    ...found.seconds.responses.map((s) => `response ${s.toFixed(1)} s`)];
  $("facts").textContent = `Heard: ${heard.join(", ")}. Judged by ${found.judge.name}, version ${found.judge.version}.`;
  $("result").hidden = false;
  $("result").focus();
}

function complain(text) {
  $("error").textContent = text;
  $("error").hidden = false;
}

async function score(event) {
  event.preventDefault();
  for (const id of ["error", "result"]) $(id).hidden = true;
  for (const id of ["scores", "warnings", "error"]) $(id).replaceChildren();
  if (!clips.response) {
    complain("There is no response yet: choose a file, or record one.");
    return;
  }
  const form = new FormData();
  form.append("response", clips.response, "response");
  if (clips.context) form.append("context", clips.context, "context");
  if ($("situation").value.trim()) form.append("situation", $("situation").value.trim());
  if (!$("level").hidden) form.append("level", $("level").value);
  const size = [clips.response, clips.context].reduce((sum, clip) => sum + (clip?.size ?? 0), 0);
  if (size > limits.max_bytes) {
    complain(`The clips have ${size} bytes; expected at most ${limits.max_bytes}.`);
    return;
  }
  $("score").disabled = true;
  $("busy").textContent = "Listening…";
  try {
    show(await ask("v1/score", { method: "POST", body: form }));
  } catch (problem) {
    complain(problem.message);
  } finally {
    $("score").disabled = false;
    $("busy").textContent = "";
  }
}

document.querySelectorAll("[data-clip]").forEach(setUp);
$("form").addEventListener("submit", score);
$("token")?.addEventListener("change", learnLimits);
learnLimits();
