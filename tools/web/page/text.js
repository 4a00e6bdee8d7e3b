// Texts and elements. All text is set as textContent, so that a file name is never markup.

// Control characters and direction marks, which are shown as on the command line: each byte as
// \xNN.
const kUnsafe = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

// For errors: `sluice web` has escaped the names in them.
export function sentence(text) {
  return String(text).replace(kUnsafe, (character) =>
    [...new TextEncoder().encode(character)]
      .map((byte) => '\\x' + byte.toString(16).padStart(2, '0')).join(''));
}

// For names and texts with names: also escapes backslashes.
export const shown = (text) => sentence(String(text).replaceAll('\\', '\\x5c'));

// element('p', {class: 'muted', text: 'words'}, child, ...)
export function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === 'text') node.textContent = value;
    else if (key === 'click') node.addEventListener('click', value);
    else node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

// Replaces the content of `box` if it changes, and keeps the keyboard focus. Does nothing while a
// button in it is pressed, because a click must end on the node where it began.
export function fill(box, ...nodes) {
  const next = element(box.localName, {}, ...nodes);
  if (box.innerHTML === next.innerHTML || box.matches(':active')) return;
  const buttons = () => [...box.querySelectorAll('button')];
  const focused = buttons().indexOf(document.activeElement);
  box.replaceChildren(...next.childNodes);
  if (focused >= 0) buttons()[Math.min(focused, buttons().length - 1)]?.focus({preventScroll: true});
}

export function size(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) {
    bytes /= 1024;
    ++unit;
  }
  return (unit === 0 ? Math.round(bytes) : bytes.toFixed(bytes < 99.95 ? 1 : 0)) + ' ' + units[unit];
}

export const rate = (bytes) => size(bytes) + '/s';
export const count = (number) => Math.round(number).toLocaleString('en-US');
export const files = (number) => count(number) + (number === 1 ? ' file' : ' files');
export const score = (number) => (number < 99.5 && number > 0 ? number.toFixed(1) : count(number));

export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const parts = [['d', 86400], ['h', 3600], ['min', 60], ['s', 1]];
  const first = parts.findIndex(([, length]) => whole >= length);
  if (first < 0) return '0 s';
  const [unit, length] = parts[first];
  const text = Math.floor(whole / length) + ' ' + unit;
  if (first !== 0 && first !== 1) return text;
  const [less, part] = parts[first + 1];
  const rest = Math.floor((whole % length) / part);
  return rest ? text + ' ' + rest + ' ' + less : text;
}

// A value per GB and day, as 'sluice status' shows it.
export function price(number, optimize) {
  const text = number === 0 ? '0' : number < 99.5 ? String(Number(number.toPrecision(2))) : count(number);
  return text + (optimize === 'hits' ? ' hits/GB a day' : ' s/GB a day');
}

export const encoded = (path) => path.split('/').map(encodeURIComponent).join('/');

// The steps of the colours. They include the default thresholds of tiers.
const kSteps = [0.05, 1, 10, 30, 100, 300];
export const heatStep = (heat) => kSteps.filter((least) => heat >= least).length;
export const kHeatWords = ['unused', 'below 1', 'below 10', 'below 30', 'below 100', 'below 300', 'above'];

// A path as a button that explains the file.
export function file(path, tell) {
  const at = path.lastIndexOf('/') + 1;
  // A file of the root has no folder that could be shortened.
  const parts = at > 1 ? [['folder', path.slice(0, at)], ['base', path.slice(at)]] : [['base', path]];
  return element('button', {class: 'file path', title: shown(path), click: () => tell(encoded(path), path)},
    ...parts.map(([kind, text]) => element('bdi', {class: kind, text: shown(text)})));
}
