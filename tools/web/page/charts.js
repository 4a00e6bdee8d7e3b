// Bars and sparklines.
import {element} from './text.js';

function svg(name, attributes, ...children) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === 'text') node.textContent = value;
    else node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

// `marks` are percents.
export function bar(percent, {label, marks = [], high = false, thin = false}) {
  const fill = element('div', {class: high ? 'fill high' : 'fill'});
  fill.style.width = Math.min(100, percent) + '%';
  const out = element('div', {class: thin ? 'bar thin' : 'bar', role: 'img', 'aria-label': label}, fill);
  for (const mark of marks) {
    const line = element('div', {class: 'mark'});
    line.style.left = `calc(${Math.min(mark, 100)}% - 2px)`;
    out.append(line);
  }
  return out;
}

// `samples` are {time, reads, writes} in seconds and bytes per second, the newest last. The curve
// shows the last `seconds`.
export function sparkline(samples, seconds, label) {
  const top = Math.max(1 << 20, ...samples.map((each) => Math.max(each.reads, each.writes)));
  const line = (key) => samples.map((each, i) => {
    const x = seconds - (samples[samples.length - 1].time - each.time);
    return `${i ? 'L' : 'M'}${x} ${38 - 36 * each[key] / top}`;
  }).join('');
  return svg('svg', {class: 'spark', viewBox: `0 0 ${seconds} 40`, preserveAspectRatio: 'none',
    role: 'img', 'aria-label': label},
    svg('path', {class: 'base', d: `M0 39H${seconds}`}),
    svg('path', {class: 'writes', d: line('writes')}),
    svg('path', {class: 'reads', d: line('reads')}));
}

// `points` are {time, value}, the oldest first. A value holds until the next one.
export function history(points, label) {
  const first = points[0].time, span = Math.max(1, points[points.length - 1].time - first);
  const top = Math.max(...points.map((each) => each.value)) || 1;
  const y = (value) => 38 - 36 * value / top;
  const d = points.map((each, i) => {
    const x = 120 * (each.time - first) / span;
    return i ? `H${x}V${y(each.value)}` : `M${x} ${y(each.value)}`;
  }).join('') + 'H120';
  return svg('svg', {class: 'spark', viewBox: '0 0 120 40', preserveAspectRatio: 'none', role: 'img', 'aria-label': label},
    svg('path', {class: 'base', d: 'M0 39H120'}), svg('path', {class: 'reads', d}));
}
