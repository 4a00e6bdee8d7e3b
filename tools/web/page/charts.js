// Bars, sparklines and the simulator's chart.
import {element, size} from './text.js';

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

// Hit ratios over sizes of the fastest tier, one curve per policy, `width` pixels wide.
export function replayChart(results, width) {
  const height = Math.round(Math.min(340, Math.max(240, width * 0.55)));
  const left = 40, right = 84, top = 10, bottom = 40;
  const sizes = [...new Set(results.map((each) => each.percent))];
  const x = (percent) => left + (width - left - right) * sizes.indexOf(percent) / (sizes.length - 1);
  const y = (ratio) => top + (height - top - bottom) * (1 - ratio);
  const out = svg('svg', {class: 'chart', viewBox: `0 0 ${width} ${height}`, width, height, role: 'img',
    'aria-label': 'Requests that the fastest tier serves, by its size and by policy'});
  for (const ratio of [0, 0.25, 0.5, 0.75, 1]) {
    out.append(svg('path', {class: 'grid', d: `M${left} ${y(ratio)}H${width - right}`}),
      svg('text', {x: left - 6, y: y(ratio) + 4, 'text-anchor': 'end', text: 100 * ratio + '%'}));
  }
  for (const percent of sizes) {
    const bytes = results.find((each) => each.percent === percent).fast_bytes;
    out.append(svg('text', {x: x(percent), y: height - 20, 'text-anchor': 'middle', text: percent + '%'}));
    if (width > 480)
      out.append(svg('text', {x: x(percent), y: height - 5, 'text-anchor': 'middle', text: size(bytes)}));
  }
  const labels = [];
  for (const policy of [...new Set(results.map((each) => each.policy))].reverse()) {
    const points = results.filter((each) => each.policy === policy);
    const style = policy === 'sluice' ? 'sluice' : policy.startsWith('belady') ? 'oracle' : '';
    out.append(svg('path', {class: 'curve ' + style,
      d: points.map((each, i) => `${i ? 'L' : 'M'}${x(each.percent)} ${y(each.hit_ratio)}`).join('')}));
    labels.push({policy, style, y: y(points[points.length - 1].hit_ratio) + 4});
  }
  // Labels of curves that end close together move down; if the last one leaves the chart, all move up.
  labels.sort((a, b) => a.y - b.y);
  labels.forEach((label, i) => { if (i) label.y = Math.max(label.y, labels[i - 1].y + 14); });
  const over = Math.max(0, labels[labels.length - 1].y - (height - bottom + 4));
  for (const label of labels)
    out.append(svg('text', {x: width - right + 7, y: label.y - over, class: label.style,
      text: label.policy === 'belady-size' ? 'oracle' : label.policy}));
  return out;
}
