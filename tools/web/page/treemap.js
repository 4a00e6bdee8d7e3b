// The map: the area of a rectangle is the size of its file or directory. A squarified treemap.
import {element, files, score, shown, size} from './text.js';

const kMost = 60;  // the others are drawn as one rectangle
const kInner = 24;
const kGap = 2;
const kWords = 66;  // height of the text of a tile
const kEdge = 6;

// Fills rows along the shorter side. A row grows as long as that makes its rectangles squarer.
export function squarified(items, width, height) {
  const out = [];
  let left = 0, top = 0, rest = items.filter((item) => item.bytes > 0);
  const total = rest.reduce((sum, item) => sum + item.bytes, 0);
  const scale = total ? width * height / total : 0;
  const worst = (row, length) => {
    const depth = row.reduce((all, item) => all + item.bytes * scale, 0) / length;
    return Math.max(...row.map((item) => {
      const part = item.bytes * scale / depth;
      return Math.max(part / depth, depth / part);
    }));
  };
  while (rest.length) {
    const right = width - left, below = height - top;
    const length = Math.min(right, below);
    let row = [rest[0]];
    while (row.length < rest.length && worst([...row, rest[row.length]], length) <= worst(row, length))
      row.push(rest[row.length]);
    rest = rest.slice(row.length);
    const area = row.reduce((all, item) => all + item.bytes * scale, 0);
    const depth = area / length;
    let at = 0;
    for (const item of row) {
      const part = item.bytes * scale / depth;
      out.push(right >= below ? {item, x: left, y: top + at, width: depth, height: part}
                              : {item, x: left + at, y: top, width: part, height: depth});
      at += part;
    }
    if (right >= below) left += depth;
    else top += depth;
  }
  return out;
}

// The tiers with at least a percent of the bytes: "nvme", or "nvme 70%, hdd 30%".
function tiersOf(item) {
  const parts = Object.entries(item.tiers).sort((a, b) => b[1] - a[1]);
  if (parts.length < 2) return parts.map(([name]) => shown(name)).join('');
  return parts.filter(([, bytes]) => bytes >= item.bytes / 100).map(([name, bytes]) => `${shown(name)} ${Math.round(100 * bytes / item.bytes)}%`).join(', ');
}

// The tier with the most bytes; undefined if none is known.
export const mainTier = (item) => Object.entries(item.tiers).sort((a, b) => b[1] - a[1])[0]?.[0];

// The largest children of a level, and one item for the others.
function itemsOf(level, most) {
  const items = level.children.slice(0, most);
  const others = level.children.slice(most).concat(level.rest.files ? [level.rest] : []);
  if (others.length) {
    const sum = (key) => others.reduce((all, item) => all + item[key], 0);
    const bytes = sum('bytes');
    items.push({rest: true, files: sum('files'), bytes, tiers: {},
      heat: bytes ? others.reduce((all, item) => all + item.heat * item.bytes, 0) / bytes : 0});
  }
  return items.sort((a, b) => b.bytes - a.bytes);
}

function put(node, {x, y, width, height}) {
  node.style.left = x + 'px';
  node.style.top = y + 'px';
  node.style.width = Math.max(1, width - kGap) + 'px';
  node.style.height = Math.max(1, height - kGap) + 'px';
}

const nameOf = (item) => item.rest ? files(item.files) + ' more' : shown(item.name) + (item.directory ? '/' : '');

// The content of a directory, below the text of its tile. It is only decoration, not clickable.
function drawInner(tile, level, width, height, colour) {
  const box = element('div', {class: 'inner', 'aria-hidden': 'true'});
  for (const each of squarified(itemsOf(level, kInner), width - 2 * kEdge, height - kWords - kEdge)) {
    const part = element('div', {class: 'part ' + colour(each.item)});
    put(part, each);
    if (each.width > 48 && each.height > 18) part.append(element('span', {text: nameOf(each.item)}));
    box.append(part);
  }
  tile.append(box);
}

// Draws `level`, an answer of /api/tree, into `box`. `inner` has the answers for some of its
// directories, by `at`. `colour` gives the class of an item. Calls `open` with the chosen child.
export function drawMap(box, level, inner, colour, open) {
  const focused = [...box.children].indexOf(document.activeElement);
  const children = itemsOf(level, kMost);
  box.replaceChildren();
  if (!children.some((item) => item.bytes > 0)) {
    box.append(element('p', {class: 'muted', text: 'This directory takes no space.'}));
    return;
  }
  for (const each of squarified(children, box.clientWidth + kGap, box.clientHeight + kGap)) {
    const {item, width, height} = each;
    const name = nameOf(item);
    const words = [name, size(item.bytes), item.directory ? files(item.files) : '', tiersOf(item),
      'heat ' + score(item.heat)].filter(Boolean);
    const tile = element('button', {class: 'tile ' + colour(item), title: words.join('\n'),
      'aria-label': words.join(', '), click: () => open(item)});
    tile.disabled = Boolean(item.rest);
    put(tile, each);
    if (width > 44 && height > 26) {
      tile.append(element('span', {class: item.directory ? 'directory' : '', text: name}));
      if (height > 44) tile.append(element('span', {class: 'size', text: size(item.bytes)}));
      if (height > 62 && width > 80) tile.append(element('span', {class: 'size', text: tiersOf(item)}));
      const content = inner.get(item.at);
      if (content?.children && height > 2 * kWords && width > 100) drawInner(tile, content, width, height, colour);
    } else {
      tile.style.padding = '0';
    }
    box.append(tile);
  }
  if (focused >= 0) box.children[Math.min(focused, box.children.length - 1)].focus({preventScroll: true});
}
