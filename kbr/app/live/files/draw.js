// Pictures of rows {n, step, mean, half, cov, seen, ms}: n counts the stream, step its sequence.

const FONT = "12px system-ui, sans-serif";
const ALIKE = 5; // ratio of two spreads that share one scale
const RECENT = 40; // steps of a path that stand out
const LEFT = 46, RIGHT = 8, TOP = 8, BOTTOM = 20; // margins of a picture with axes

export const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

// A canvas in CSS pixels, sharp on any screen, wiped.
function sheet(canvas) {
  const scale = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  const w = Math.round(width * scale), h = Math.round(height * scale);
  if (canvas.width !== w || canvas.height !== h) Object.assign(canvas, { width: w, height: h });
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = FONT;
  pen.lineJoin = "round";
  return { pen, width, height };
}

// Round numbers inside [low, high], about `count` of them.
function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step); k * step <= high && found.length < 50; k++) found.push(k * step);
  return { step, found };
}

function label(value, step) {
  if (Math.abs(value) < step / 2) return "0";
  const size = Math.max(Math.abs(value), step);
  const text = size >= 1e5 || step < 1e-4 ? value.toExponential(1)
    : value.toFixed(Math.max(0, -Math.floor(Math.log10(step) + 1e-9)));
  return text.replaceAll("-", "−");
}

// From the lowest to the highest with a little room; never empty, never beyond what can be drawn.
function reach(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (isNumber(value)) [low, high] = [Math.min(low, value), Math.max(high, value)];
  }
  if (low > high) return [0, 1];
  const room = Math.max((high - low) * 0.06, Math.abs(high) * 1e-9, 1e-12);
  const bound = (value) => Math.max(-1e300, Math.min(1e300, value));
  return [bound(low - room), bound(high + room)];
}

const follows = (a, b) => b.n === a.n + 1 && b.step === a.step + 1;

// Stretches [n, mean, half] without a hole; an angle goes on past its border, and on from the other.
function stretches(rows, k, turn) {
  const found = [];
  let before = null;
  for (const row of rows) {
    const mean = row.mean[k];
    if (!isNumber(mean)) { before = null; continue; }
    const half = Math.min(row.half[k] ?? 0, turn ? turn / 2 : Infinity);
    if (!before || !follows(before, row)) {
      found.push([[row.n, mean, half]]);
    } else {
      const past = turn ? turn * Math.round((before.mean[k] - mean) / turn) : 0;
      const last = found.at(-1).at(-1);
      found.at(-1).push([row.n, mean + past, half]);
      if (past) found.push([[last[0], last[1] - past, last[2]], [row.n, mean, half]]);
    }
    before = row;
  }
  return found;
}

function axes({ pen, width, height }, x, y, xTicks, yTicks, colour) {
  pen.lineWidth = 1;
  pen.strokeStyle = colour.line;
  pen.fillStyle = colour.soft;
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  for (const [value, text] of yTicks) {
    const at = Math.round(y(value)) + 0.5;
    pen.beginPath(); pen.moveTo(LEFT, at); pen.lineTo(width - RIGHT, at); pen.stroke();
    pen.fillText(text, LEFT - 5, at);
  }
  pen.textBaseline = "top";
  pen.textAlign = "center";
  for (const [value, text] of xTicks) {
    const room = pen.measureText(text).width / 2;
    pen.fillText(text, Math.min(x(value), width - room - 1), height - BOTTOM + 5);
  }
}

function angleTicks(low, turn) {
  const isDegrees = turn === 360;
  const names = ["0", "π/2", "π", "3π/2", "2π"];
  return [0, 1, 2, 3, 4].map((k) => {
    const quarter = Math.round((4 * low) / turn) + k;
    const name = isDegrees ? String(90 * Math.abs(quarter)) : names[Math.abs(quarter)];
    return [low + (k * turn) / 4, `${quarter < 0 ? "−" : ""}${name}`];
  });
}

function numberTicks(low, high, count, grouped = false) {
  const { step, found } = ticks(low, high, count);
  return found.map((v) => [v, grouped ? v.toLocaleString("en") : label(v, step)]);
}

// One latent over the stream, with its band.
export function drawLatent(canvas, rows, k, latent, colour) {
  const paper = sheet(canvas), { pen, width, height } = paper;
  if (!rows.length || width < LEFT + RIGHT + 20) return;
  const { turn, low } = latent;
  const [first, last] = [rows[0].n, Math.max(rows.at(-1).n, rows[0].n + 1)];
  const [bottom, top] = turn
    ? [low, low + turn]
    : reach(rows.flatMap((r) => [r.mean[k] - r.half[k], r.mean[k] + r.half[k]]));
  const x = (n) => LEFT + ((n - first) / (last - first)) * (width - LEFT - RIGHT);
  const y = (v) => height - BOTTOM - ((v - bottom) / (top - bottom)) * (height - TOP - BOTTOM);
  const xTicks = numberTicks(first, last, width / 90, true).filter(([n]) => Number.isInteger(n));
  const yTicks = turn ? angleTicks(low, turn) : numberTicks(bottom, top, 5);
  axes(paper, x, y, xTicks, yTicks, colour);
  pen.save();
  pen.beginPath();
  pen.rect(LEFT, TOP - 2, width - LEFT - RIGHT + 2, height - TOP - BOTTOM + 4);
  pen.clip();
  pen.fillStyle = colour.gap;
  for (let i = 0; i < rows.length; i++) {
    if (rows[i].seen) continue;
    const start = i;
    while (i + 1 < rows.length && !rows[i + 1].seen && rows[i + 1].n === rows[i].n + 1) i++;
    pen.fillRect(x(rows[start].n - 0.5), TOP, x(rows[i].n + 0.5) - x(rows[start].n - 0.5), height - TOP - BOTTOM);
  }
  const parts = stretches(rows, k, turn);
  pen.fillStyle = colour.band;
  pen.beginPath(); // one for all: where stretches overlap, the colour stays the same
  for (const shift of turn ? [-turn, 0, turn] : [0]) {
    for (const part of parts) {
      pen.moveTo(x(part[0][0]), y(part[0][1] + shift));
      for (const [n, mean, half] of part) pen.lineTo(x(n), y(mean + half + shift));
      for (const [n, mean, half] of [...part].reverse()) pen.lineTo(x(n), y(mean - half + shift));
      pen.closePath();
    }
  }
  pen.fill();
  pen.strokeStyle = colour.accent;
  pen.lineWidth = 1.6;
  for (const part of parts) {
    pen.beginPath();
    for (const [n, mean] of part) pen.lineTo(x(n), y(mean));
    if (part.length === 1) pen.arc(x(part[0][0]), y(part[0][1]), 0.8, 0, 2 * Math.PI);
    pen.stroke();
  }
  pen.strokeStyle = colour.soft;
  pen.lineWidth = 1.5;
  pen.setLineDash([4, 3]);
  for (let i = 1; i < rows.length; i++) {
    if (rows[i].n !== rows[i - 1].n + 1 || follows(rows[i - 1], rows[i])) continue;
    const at = x(rows[i].n - 0.5);
    pen.beginPath(); pen.moveTo(at, TOP); pen.lineTo(at, height - BOTTOM); pen.stroke();
  }
  pen.restore();
}

// Points of an ellipse {m + radius C^1/2 u}, by the Cholesky factor of C = [a b; b c].
function ellipse([m0, m1], [a, b, , c], radius) {
  const p = Math.sqrt(Math.max(a, 0)), q = p > 0 ? b / p : 0, r = Math.sqrt(Math.max(c - q * q, 0));
  return Array.from({ length: 73 }, (_, i) => {
    const u = radius * Math.cos((i * Math.PI) / 36), v = radius * Math.sin((i * Math.PI) / 36);
    return [m0 + p * u, m1 + q * u + r * v];
  });
}

// The path of two latents in their plane, with the region of the newest belief.
export function drawPlane(canvas, all, radius, colour) {
  const paper = sheet(canvas), { pen, width, height } = paper;
  const rows = all.filter((row) => row.mean.every(isNumber));
  if (!rows.length || width < 120) return;
  const newest = rows.at(-1);
  const ring = newest.cov.every(isNumber) ? ellipse(newest.mean, newest.cov, radius) : [];
  const points = [...rows.map((row) => row.mean), ...ring];
  let [[x0, x1], [y0, y1]] = [reach(points.map((p) => p[0])), reach(points.map((p) => p[1]))];
  const w = width - LEFT - RIGHT, h = height - TOP - BOTTOM;
  const spread = [x1 - x0, y1 - y0];
  if (Math.max(...spread) <= ALIKE * Math.min(...spread)) {
    const unit = Math.max(spread[0] / w, spread[1] / h); // the same on both axes
    [x0, x1] = [(x0 + x1 - unit * w) / 2, (x0 + x1 + unit * w) / 2];
    [y0, y1] = [(y0 + y1 - unit * h) / 2, (y0 + y1 + unit * h) / 2];
  }
  const x = (v) => LEFT + ((v - x0) / (x1 - x0)) * w;
  const y = (v) => height - BOTTOM - ((v - y0) / (y1 - y0)) * h;
  axes(paper, x, y, numberTicks(x0, x1, w / 70), numberTicks(y0, y1, h / 60), colour);
  pen.save();
  pen.beginPath();
  pen.rect(LEFT, TOP, w, h);
  pen.clip();
  pen.strokeStyle = colour.accent;
  pen.lineWidth = 1.3;
  for (const [alpha, some] of [[0.25, rows.slice(0, 1 - RECENT)], [0.9, rows.slice(-RECENT)]]) {
    pen.globalAlpha = alpha;
    pen.beginPath();
    some.forEach((row, i) => {
      const joined = i > 0 && follows(some[i - 1], row);
      pen[joined ? "lineTo" : "moveTo"](x(row.mean[0]), y(row.mean[1]));
    });
    pen.stroke();
  }
  pen.globalAlpha = 1;
  pen.strokeStyle = colour.cross;
  pen.beginPath();
  for (const { seen, mean } of rows) {
    if (seen) continue;
    const [at, up] = [x(mean[0]), y(mean[1])];
    pen.moveTo(at - 3, up - 3); pen.lineTo(at + 3, up + 3);
    pen.moveTo(at - 3, up + 3); pen.lineTo(at + 3, up - 3);
  }
  pen.stroke();
  pen.beginPath();
  for (const [u, v] of ring) pen.lineTo(x(u), y(v));
  pen.fillStyle = colour.band;
  pen.strokeStyle = colour.accent;
  pen.fill();
  pen.stroke();
  pen.beginPath();
  pen.arc(x(newest.mean[0]), y(newest.mean[1]), 4, 0, 2 * Math.PI);
  pen.fillStyle = newest.seen ? colour.accent : colour.cross;
  pen.fill();
  pen.restore();
}

// An angle and its band: 0 to the right, turning to the left.
export function drawDial(canvas, mean, half, turn, colour) {
  const { pen, width, height } = sheet(canvas);
  const [cx, cy, size] = [width / 2, height / 2, Math.min(width, height) / 2 - 2];
  pen.strokeStyle = colour.line;
  pen.beginPath(); pen.arc(cx, cy, size, 0, 2 * Math.PI); pen.moveTo(cx + size - 5, cy); pen.lineTo(cx + size, cy);
  pen.stroke();
  if (!isNumber(mean)) return;
  const angle = (-2 * Math.PI * mean) / turn;
  const wide = Math.min((2 * Math.PI * (half ?? 0)) / turn, Math.PI);
  pen.fillStyle = colour.band;
  pen.beginPath(); pen.moveTo(cx, cy); pen.arc(cx, cy, size, angle - wide, angle + wide); pen.fill();
  pen.strokeStyle = colour.accent;
  pen.lineWidth = 2;
  pen.beginPath(); pen.moveTo(cx, cy); pen.lineTo(cx + size * Math.cos(angle), cy + size * Math.sin(angle)); pen.stroke();
}

// Times of steps as bars, from zero; what is above three times the median is cut off.
export function drawTimes(canvas, times, most, colour) {
  const { pen, width, height } = sheet(canvas);
  const shown = times.slice(-Math.floor(width / 2));
  pen.fillStyle = colour.accent;
  shown.forEach((ms, i) => {
    const tall = Math.max(1, Math.min(ms / most, 1) * (height - 1));
    pen.fillRect(i * 2, height - tall, 1.5, tall);
  });
}
