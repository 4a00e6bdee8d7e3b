// Requests /api/ about every second and draws the answers. tools/web/handler.hpp lists the requests.
import {bar, history as historyChart, sparkline} from './charts.js';
import {count, duration, element, encoded, file, files, fill, heatStep, kHeatWords, price, rate, score, sentence, shown,
  size} from './text.js';
import {drawMap, mainTier} from './treemap.js';

const kSeconds = 120;  // length of the curves of the tiers
const kTierColours = 6;
const kInner = 6;  // directories of the map that show their content; also the number of parallel requests
const $ = (id) => document.getElementById(id);
const words = (text) => element('p', {class: 'muted', text});

let token = '';
let before = null;              // the last answer
let place = [];                 // the path that the map shows: {name, at}
let level = null;               // the answer of /api/tree that the map shows
let inner = new Map();          // by `at`: the answers for its larger directories
let chosen = null;              // the file that was explained last: {at, path}
let byTier = false;             // what colours the map: the tier, or the heat
let goes = 0, tells = 0;        // numbers of the latest requests: answers to older ones are dropped
let going = 0;                  // running requests for the map
let mapDue = 0;                 // when to request it again, as Date.now()
let pricesDue = 0;              // when to request the prices again
let told = {};                  // the last answer of /api/moves, its counts and when to request it again
const samples = new Map();      // by tier: {time, reads, writes}
const seenMoves = new Map();    // by path: {bytes, time}, for their rates

// The token follows the '#', which browsers never send. It is stored for reloads of this tab and
// removed from the address bar.
function takeToken() {
  const given = location.hash.slice(1);
  if (/^[0-9a-f]{32}$/.test(given)) {
    sessionStorage.setItem('token', given);
    history.replaceState(null, '', '/');
  }
  token = sessionStorage.getItem('token') || '';
}

class Problem extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function ask(what) {
  if (!token) throw new Problem(401, '');
  let answer;
  try {
    answer = await fetch('/api/' + what, {headers: {Authorization: 'Bearer ' + token},
      signal: AbortSignal.timeout(8000), cache: 'no-store'});
  } catch (error) {
    throw new Problem(0, error.name === 'TimeoutError' ? 'sluice web does not answer in time.'
      : 'sluice web has ended. Start it again and open the new address that it prints.');
  }
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Problem(answer.status, body.error || answer.statusText);
  return body;
}

function showTrouble(problem) {
  $('main').classList.toggle('stale', Boolean(problem));
  $('trouble').hidden = !problem;
  if (!problem) return;
  const text = problem.status === 401
    ? 'This address lacks the token. Open the whole address that sluice web printed.'
    : problem.status === 503 ? 'The mount does not answer. ' + sentence(problem.message) + '. This page continues when the mount is back.'
      : sentence(problem.message);
  if ($('trouble').textContent !== text) $('trouble').textContent = text;
  setState(problem.status === 503 ? 'not responding' : 'no connection', 'bad');
}

function setState(text, kind) {
  if ($('state').textContent !== text) $('state').textContent = text;
  $('state').className = 'state ' + kind;
}

function drawHeader(now) {
  $('mount').textContent = shown(now.mountpoint);
  document.title = shown(now.mountpoint) + ' · Sluice';
  const m = now.migration;
  const pass = m.paused ? 'migration is paused' : !m.automatic ? 'automatic migration is off'
    : m.passing ? 'a pass is running'
    : m.next_pass > now.now ? 'next pass in at most ' + duration(m.next_pass - now.now) : 'a pass is due';
  $('facts').textContent = `up ${duration(now.uptime_s)}, ${count(now.open_files)} open, ${pass}, version ${shown(now.version)}`;
  const offline = now.tiers.filter((tier) => !tier.online).length;
  const bad = now.tiers.flatMap((tier) => tier.states.filter((state) => state.serious).map((state) => `${shown(tier.name)} is ${state.name}`));
  if (offline) setState(offline === 1 ? 'a tier is offline' : offline + ' tiers are offline', 'bad');
  else if (bad.length) setState(bad[0], 'bad');
  else if (m.paused) setState('paused', 'warn');
  else setState('serving', 'good');
}

// The counters of the disk of a tier, or those of the daemon if there is no disk.
const counters = (tier) => tier.disk ?? tier;

function drawTiers(now) {
  const seconds = before ? now.uptime_s - before.uptime_s : 0;
  $('tiers').replaceChildren(...now.tiers.map((tier) => {
    const past = before?.tiers.find((each) => each.name === tier.name);
    const history = samples.get(tier.name) ?? [];
    samples.set(tier.name, history);
    if (past && seconds > 0 && Boolean(past.disk) === Boolean(tier.disk)) {
      const change = (key) => Math.max(0, (counters(tier)[key] - counters(past)[key]) / seconds);
      history.push({time: now.uptime_s, reads: change('read_bytes'), writes: change('written_bytes')});
      while (history[0].time < now.uptime_s - kSeconds) history.shift();
    }
    const last = history[history.length - 1] ?? {reads: 0, writes: 0};
    const percent = tier.total ? Math.ceil(100 * tier.used / (tier.used + tier.free)) : 0;
    const full = tier.online ? `${size(tier.used)} of ${size(tier.total + tier.kept)}, ${percent}% full` : '';
    const reads = tier.speed ? `; reads: ${Number((tier.speed.latency_us / 1000).toPrecision(2))} ms, then ${rate(tier.speed.bytes_per_s)}` : '';
    const unusual = tier.states.map((state) => state.name + ': ' + shown(state.words)).join('; ');
    const usual = tier.leaves_at === null ? '' : 'files leave at ' + tier.leaves_at + '%';
    const note = unusual || (usual + reads).replace(/^; /, '');
    return element('div', {class: 'tier'},
      element('span', {class: 'name', text: shown(tier.name)}),
      bar(percent, {label: [full, note].filter(Boolean).join(', '), marks: tier.leaves_at === null ? [] : [tier.leaves_at],
        high: tier.states.some((state) => state.name === 'full' || state.name === 'above-watermark')}),
      element('div', {class: 'words muted'},
        element('span', {text: full}),
        element('span', {class: tier.states.some((state) => state.serious) ? 'failed' : '', text: note})),
      element('div', {class: 'rate'},
        sparkline(history, kSeconds, `reads ${rate(last.reads)}, writes ${rate(last.writes)}`),
        element('div', {class: 'rates muted'},
          element('div', {text: 'read ' + rate(last.reads)}),
          element('div', {text: 'write ' + rate(last.writes)}))));
  }));
}

const item = (...parts) => element('div', {class: 'item'}, ...parts);

function drawMoves(now) {
  const m = now.migration;
  $('moves-summary').textContent = `${count(m.moved)} moved since the mount (${size(m.moved_bytes)}), ` +
    `${count(m.active)} under way, ${count(m.queued)} queued` +
    (m.queued + m.active > 0 && m.bytes_left !== undefined ? ` (${size(m.bytes_left)} left` +
      (m.time_left_s > 0 ? `, about ${duration(m.time_left_s)})` : ')') : '') + `, ${count(m.pending)} waiting` +
    (m.failed ? `, ${count(m.failed)} failed` : '');
  const time = now.uptime_s;
  fill($('moves'), ...now.moves.map((move) => {
    const past = seenMoves.get(move.path);
    seenMoves.set(move.path, {bytes: move.bytes, time});
    const speed = past && time > past.time ? Math.max(0, (move.bytes - past.bytes) / (time - past.time)) : 0;
    const percent = move.total ? 100 * move.bytes / move.total : 0;
    const left = speed > 0 ? `, ${rate(speed)}, ${duration((move.total - move.bytes) / speed)} left` : '';
    return item(file(move.path, tell),
      element('span', {class: 'number muted', text: `${shown(move.from)} → ${shown(move.to)}`}),
      bar(percent, {label: percent.toFixed(0) + '% copied', thin: true}),
      element('span', {class: 'under muted', text: move.since === 0 ? 'waiting for its turn'
        : `${size(move.bytes)} of ${size(move.total)}${left}`}));
  }));
  for (const path of seenMoves.keys())
    if (!now.moves.some((move) => move.path === path)) seenMoves.delete(path);
}

async function drawReceipts(now) {
  const of = [now.migration.moved, now.migration.failed, now.migration.pending].join();
  // Counts do not change if one waiting move replaces another or if a reason changes.
  if (of !== told.of || Date.now() >= told.due)
    told = {...await ask('moves'), of, due: Date.now() + 10000};
  const rows = told.pending.slice(0, 5).map((each) => item(file(each.path, tell),
    element('span', {class: 'number muted', text: 'waiting, to ' + shown(each.to)}),
    element('span', {class: 'under muted', text: shown(each.why)})));
  rows.push(...told.rows.slice(0, 8).map((each) => item(each.files > 1
    ? element('span', {class: 'path', text: `${files(each.files)} below ${shown(each.path)}`}) : file(each.path, tell),
    element('span', {class: 'number muted', text: shown(each.tiers.replace('->', '→'))}),
    element('span', {class: each.result === 'failed' ? 'under failed' : 'under muted',
      text: `${each.result === 'moved' ? '' : each.result + ', '}${size(each.bytes)}, ` +
        `${each.reason ? shown(each.reason) + ', ' : ''}${duration(now.now - each.time)} ago`}))));
  fill($('receipts'), ...(rows.length ? rows : [words('Nothing has moved yet.')]));
}

function drawHottest(now) {
  const most = Math.max(1, ...now.hottest.map((each) => each.score));
  const rows = now.hottest.slice(0, 10).map((each) => item(file(each.path, tell),
    element('span', {class: 'number muted', text: `${shown(each.tier)}, ${score(each.score)}`}),
    bar(100 * each.score / most, {label: 'score ' + score(each.score), thin: true})));
  fill($('hottest'), ...(rows.length ? rows
    : [words('No file has been used since the mount. The next pass also finds files that were hot before.')]));
}

// The price of each tier but the slowest, over time.
async function drawPrices(now) {
  if (Date.now() < pricesDue) return;
  const {tiers, optimize, policy, samples: seen} = await ask('prices');
  pricesDue = Date.now() + 15000;
  if (policy !== 'value' || !seen.length) {
    fill($('prices'), words(policy === 'value' ? 'Prices are known after the first pass.'
      : 'This mount places files by the thresholds of their score, not by value.'));
    return;
  }
  const rows = tiers.slice(0, -1).map((name, i) => {
    const points = seen.filter((each) => i < each.prices.length).map((each) => ({time: each.time, value: each.prices[i]}));
    if (!points.length) return '';
    const last = points[points.length - 1].value;
    const tier = now.tiers.find((each) => each.name === name);
    const text = last > 0 ? price(last, optimize)
      : !tier || tier.intake === 'open' ? 'has room for everything' : tier.intake.replace('-', ' ');
    return element('div', {class: 'item'}, element('span', {text: shown(name)}),
      element('span', {class: 'number muted', text}),
      historyChart(points, `${shown(name)}: ${text}`));
  });
  const what = optimize === 'hits' ? 'accesses served' : 'waiting saved';
  fill($('prices'), ...rows, words(`A file belongs on a tier if its ${what} per GB and day is above the price of the tier. ` +
    `In the last ${duration(now.now - seen[0].time)}.`));
}

function drawGpu(now) {
  const routes = Object.entries(now.gpu.routes).filter(([name, each]) => name !== 'all' && each.operations > 0);
  if (!routes.length) {
    fill($('gpu'), words(now.gpu.enabled ? 'No GPU reads since the mount.'
      : 'GPU reads are turned off for this mount.'));
    return;
  }
  const seconds = before ? now.uptime_s - before.uptime_s : 0;
  const head = element('tr', {}, ...['Route', 'Now', 'Total', 'p50', 'p99'].map((text, i) =>
    element('th', {text, class: i ? 'number' : '', scope: 'col'})));
  fill($('gpu'), element('table', {}, head, ...routes.map(([name, each]) => {
    const past = before?.gpu.routes[name]?.bytes ?? 0;
    const speed = seconds > 0 ? Math.max(0, each.bytes - past) / seconds : 0;
    const cells = [rate(speed), size(each.bytes), count(each.p50_us) + ' µs', count(each.p99_us) + ' µs'];
    return element('tr', {}, element('td', {text: shown(name)}),
      ...cells.map((text) => element('td', {class: 'number', text})));
  })), ...now.gpu.devices.filter(({hbm}) => hbm).map(({hbm, name}) =>
    words(`${size(hbm.bytes)} of ${size(hbm.limit)} in the memory of ${shown(name)}: ` +
      `${count(hbm.files)} files, ${count(hbm.hits)} hits.`)));
}

// The map.
function drawCrumbs() {
  const steps = [{name: '/', at: ''}, ...place];
  $('crumbs').replaceChildren(...steps.flatMap((step, i) => {
    const isLast = i === steps.length - 1;
    const button = element('button', {class: 'link path', click: () => go(place.slice(0, i)).catch(showTrouble),
      ...(isLast ? {'aria-current': 'location'} : {})}, element('bdi', {text: i ? shown(step.name) : 'all files'}));
    return i ? [element('span', {class: 'muted', text: '/'}), button] : [button];
  }));
}

function redrawMap() {
  if (!level?.children) return;
  const tiers = before.tiers.map((tier) => tier.name);
  const tierClass = (name) => name === undefined ? 'heat0' : 'tier' + Math.max(0, tiers.indexOf(name)) % kTierColours;
  const colour = (child) => byTier ? tierClass(mainTier(child)) : 'heat' + heatStep(child.heat);
  drawMap($('map'), level, inner, colour, (child) => {
    if (child.directory) return go([...place, {name: child.name, at: child.at}]).catch(showTrouble);
    const path = [...place, child].map((step) => '/' + step.name).join('');
    return tell([...place, child].map((step) => '/' + step.at).join(''), path);
  });
  const legend = [element('span', {text: `${files(level.files)}, ${size(level.bytes)}, ` +
    `scanned ${duration(before.now - level.time)} ago. ${byTier ? 'Tier' : 'Mean score'}:`})];
  const key = (kind, text) => legend.push(element('span', {}, element('span', {class: 'key swatch ' + kind}), text));
  if (byTier) tiers.forEach((name) => key(tierClass(name), shown(name)));
  else kHeatWords.forEach((text, i) => key('heat' + i, text));
  $('map-legend').replaceChildren(...legend);
}

function drawNoMap(why) {
  $('map').replaceChildren(words(why));
  $('map-legend').replaceChildren();
}

async function go(steps) {
  const isMove = steps.length !== place.length;
  const turn = ++goes;
  ++going;
  try {
    const path = steps.map((step) => '/' + step.at).join('');
    const answer = await ask('tree?path=' + (path || '/'));
    const larger = (answer.children ?? []).filter((child) => child.directory && child.bytes > answer.bytes / 20);
    const contents = new Map(await Promise.all(larger.slice(0, kInner).map(async (child) =>
      [child.at, await ask(`tree?path=${path}/${child.at}`).catch(() => null)])));
    if (turn !== goes) return;
    place = steps;
    level = answer;
    inner = contents;
    mapDue = Date.now() + (answer.time ? 30000 : 0);
    drawCrumbs();
    if (answer.time) {
      redrawMap();
    } else {
      drawNoMap('The daemon is scanning all files for the first time since the mount. ' +
        'The map appears when it is done.');
    }
    if (isMove) $('map').querySelector('button')?.focus({preventScroll: true});
  } catch (problem) {
    if (turn !== goes) return;
    if (problem.status !== 404) throw problem;
    if (steps.length) return await go(steps.slice(0, -1));  // the directory no longer exists
    mapDue = Date.now() + 30000;
    place = steps;
    level = null;
    drawCrumbs();
    drawNoMap(sentence(problem.message));
  } finally {
    --going;
  }
}

async function refreshMap() {
  // Not during the request of a click: only the latest request is drawn, and that must be the click.
  if (!going && Date.now() >= mapDue) await go(place);
}

// Explains the file `path`; `at` is the path percent-encoded.
async function tell(at, path) {
  chosen = {at, path};
  $('path').value = shown(path);
  const turn = ++tells;
  try {
    const story = await ask('explain?path=' + at);
    if (turn !== tells) return;
    $('story').replaceChildren(element('p', {class: 'path', text: shown(path)}),
      element('dl', {}, ...story.lines.flatMap((line) =>
        [element('dt', {text: line.label}), element('dd', {text: shown(line.text)})])));
  } catch (problem) {
    if (turn !== tells) return;
    $('story').replaceChildren(element('p', {class: 'failed', text: sentence(problem.message)}));
  }
  if (matchMedia('(max-width: 900px)').matches) $('story').scrollIntoView({block: 'nearest'});
}

async function refresh() {
  const now = await ask('activity');
  // The pool was mounted again: the counts belong to the old mount. `now` is in whole seconds.
  const mounted = (answer) => answer.now - answer.uptime_s;
  if (before && Math.abs(mounted(now) - mounted(before)) > 2) {
    before = null;
    samples.clear();
    seenMoves.clear();
    mapDue = 0;
    pricesDue = 0;
    told = {};
  }
  drawHeader(now);
  drawTiers(now);
  drawMoves(now);
  drawHottest(now);
  drawGpu(now);
  before = now;
  let trouble = null;
  for (const part of [() => drawReceipts(now), () => drawPrices(now), refreshMap])
    await part().catch((problem) => { trouble ??= problem; });
  if (trouble) throw trouble;
}

async function keepRefreshing() {
  for (;;) {
    if (!document.hidden) {
      try {
        await refresh();
        showTrouble(null);
      } catch (problem) {
        if (!(problem instanceof Problem)) console.error(problem);
        showTrouble(problem instanceof Problem ? problem : new Problem(0, 'This page failed: ' + problem.message));
      }
    }
    await new Promise((done) => setTimeout(done, 1000));
  }
}

takeToken();
addEventListener('hashchange', takeToken);
$('ask').addEventListener('submit', (event) => {
  event.preventDefault();
  const typed = $('path').value;
  // The text of shown() may differ from the name, and not every name can be typed.
  if (chosen && typed === shown(chosen.path)) return tell(chosen.at, chosen.path);
  // A path that was copied elsewhere begins with the mount.
  const mount = before?.mountpoint ?? '';
  const below = mount && (typed === mount || typed.startsWith(mount + '/')) ? typed.slice(mount.length) : typed;
  const path = '/' + below.replace(/^\/+/, '');
  return tell(encoded(path), path);
});
for (const button of $('colours').children) {
  button.addEventListener('click', () => {
    byTier = button.id === 'by-tier';
    for (const each of $('colours').children) each.setAttribute('aria-pressed', String(each === button));
    redrawMap();
  });
}
let width = 0;
new ResizeObserver(() => {
  if (width === $('map').clientWidth) return;
  width = $('map').clientWidth;
  redrawMap();
}).observe($('map'));
keepRefreshing();
