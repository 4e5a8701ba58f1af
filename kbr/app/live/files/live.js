// Follows the stream by server-sent events and shows it: texts here, pictures in draw.js.
import { drawDial, drawLatent, drawPlane, drawTimes, isNumber } from "./draw.js";

const KEPT = 2000; // rows in memory
const RETRY = 2000; // milliseconds until a refused connection is tried again
const at = (id) => document.getElementById(id);
const count = (number) => number.toLocaleString("en");

let stream = null; // tells one stream from the next on the same port
let facts = null;
let rows = [];
let drawn = 0, last = 0; // rows received, and the number of the newest
let ended = false, asked = false;
let arrived = 0; // when the newest row came
let cards = [];

function show(words, state) {
  at("status").textContent = words;
  at("status").dataset.state = state;
}

function begin(message) {
  if (message.stream === stream) return;
  ({ stream, facts } = message);
  [rows, drawn, last] = [[], 0, 0];
  const level = `${Math.round(100 * facts.level)} %`;
  at("filter").textContent = facts.filter;
  document.title = `${facts.filter} · kbr live`;
  at("observed").textContent = `Observed: ${facts.observed}`;
  at("region").textContent = `${level} region, ${facts.covariances} covariance`;
  at("ellipse").textContent = `${level} ellipse`;
  at("rest").textContent = facts.unseen
    ? `${facts.unseen} more latents are filtered and not drawn here.` : "";
  at("plane").hidden = !facts.plane;
  at("axes").textContent = facts.latents.map((one, k) => `${"→↑"[k]} ${one.label}`).slice(0, 2).join(", ");
  at("pictures").className = facts.plane ? "two" : facts.latents.length > 2 ? "many" : "";
  cards = facts.latents.map((latent) => {
    const card = at("latent").content.cloneNode(true).firstElementChild;
    card.querySelector(".name").textContent = latent.label;
    card.querySelector(".time").setAttribute("aria-label", `${latent.label} over the stream`);
    card.querySelector(".dial").hidden = !latent.turn;
    card.querySelector(".dial").title = "0 is to the right, angles grow to the left";
    return card;
  });
  at("latents").replaceChildren(...cards);
}

function add({ first, rows: some }) {
  some.forEach((row, i) => {
    row.n = first + i;
    if (row.n <= last) return; // had it before the connection was lost
    last = row.n;
    drawn += 1;
    rows.push(row);
  });
  rows = rows.slice(-KEPT);
  arrived = Date.now();
}

// A value with as many digits as its band deserves.
function withBand(value, half) {
  if (!isNumber(value)) return "not a number";
  if (!isNumber(half)) return value.toPrecision(4);
  const size = Math.max(Math.abs(value), half);
  const digits = half > 0 ? 1 - Math.floor(Math.log10(half)) : 4;
  if (size >= 1e6 || digits > 8) return `${value.toExponential(3)} ± ${half.toExponential(1)}`;
  const places = Math.max(0, digits);
  return `${value.toFixed(places)} ± ${half.toFixed(places)}`.replaceAll("-", "−");
}

const milliseconds = (ms) => `${ms < 10 ? ms.toFixed(2) : ms.toFixed(0)} ms`;

function describe(some) {
  const row = rows.at(-1);
  at("step").textContent = count(row.n);
  const place = ["sequence", "time"].filter((key) => key in row).map((key) => `${key} ${row[key]}`);
  if (row.step !== row.n) place.push(`step ${count(row.step)} since the belief began`);
  at("place").textContent = place.join(", ");
  at("evidence").textContent = row.seen ? "yes" : "none: a prediction";
  const gaps = some.filter((one) => !one.seen).length;
  const lost = gaps ? `none in ${count(gaps)}` : "at all";
  at("lost").textContent = `${lost} of the last ${count(some.length)} steps`;
  const times = some.map((one) => one.ms), sorted = [...times].sort((a, b) => a - b);
  const median = sorted[Math.floor(sorted.length / 2)];
  at("ms").textContent = milliseconds(row.ms);
  at("usual").textContent = `median ${milliseconds(median)}, most ${milliseconds(sorted.at(-1))}`;
  at("drawn").textContent = `${count(drawn)} steps`;
  at("drawn").title = `the newest ${count(rows.length)} are kept in this page`;
  at("skipped").textContent = last > drawn
    ? `${count(last - drawn)} skipped: before this page was open, or too fast for it` : "none skipped";
  return { times, median };
}

function draw() {
  asked = false;
  if (!rows.length) return;
  const style = getComputedStyle(document.documentElement);
  const colour = Object.fromEntries(["accent", "band", "gap", "cross", "soft", "line"].map(
    (name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  const from = last - Number(at("window").value);
  const some = rows.filter((row) => row.n > from), newest = rows.at(-1);
  const { times, median } = describe(some);
  drawTimes(at("times"), times, 3 * median, colour);
  facts.latents.forEach((latent, k) => {
    const card = cards[k];
    card.querySelector("output").textContent = withBand(newest.mean[k], newest.half[k]);
    drawLatent(card.querySelector(".time"), some, k, latent, colour);
    if (latent.turn) drawDial(card.querySelector(".dial"), newest.mean[k], newest.half[k], latent.turn, colour);
  });
  if (facts.plane) drawPlane(at("plane").querySelector("canvas"), some, facts.radius, colour);
}

function ask() {
  if (!asked) requestAnimationFrame(draw);
  asked = true;
}

function connect() {
  const source = new EventSource("events");
  source.addEventListener("facts", (event) => { begin(JSON.parse(event.data)); tell(); ask(); });
  source.addEventListener("steps", (event) => { add(JSON.parse(event.data)); tell(); ask(); });
  source.addEventListener("end", (event) => {
    source.close();
    ended = true;
    const { words, bad } = JSON.parse(event.data);
    show(words, bad ? "bad" : "ended");
    ask();
  });
  source.addEventListener("error", () => {
    const refused = source.readyState === EventSource.CLOSED;
    show(refused ? "Refused: too many pages follow this stream" : "Connection lost, trying again", "bad");
    if (refused) setTimeout(connect, RETRY);
  });
}

function tell() {
  if (!rows.length) return show("Waiting for the first observation", "waiting");
  const quiet = Math.round((Date.now() - arrived) / 1000);
  show(quiet < 3 ? "Live" : `Live, last step ${count(quiet)} s ago`, quiet < 3 ? "live" : "waiting");
}

setInterval(() => { if (!ended && at("status").dataset.state !== "bad") tell(); }, 1000);
at("window").addEventListener("change", ask);
window.addEventListener("resize", ask);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", ask);
connect();
