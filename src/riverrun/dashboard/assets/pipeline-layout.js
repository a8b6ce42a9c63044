// Where the nodes of a graph go: in layers by the longest way to them, ordered so that few edges cross.
// An edge over several layers has a place of its own in those between, so that it passes no node.

const SWEEPS = 12;

// `along` is the way records go, `across` the other one. Gives centres, the points of each edge, and the whole size.
export function layout(ids, edges, { along, across, gapAlong, gapAcross, thin = 14 }) {
  const known = new Set(ids);
  const ways = edges.filter(([from, to]) => known.has(from) && known.has(to) && from !== to);
  const layers = spread(layersOf(ids, ways), ids, ways, thin, across);
  order(layers);
  place(layers, gapAcross);
  const all = layers.flat();
  const low = Math.min(...all.map((item) => item.at - item.size / 2));
  const high = Math.max(...all.map((item) => item.at + item.size / 2));
  const step = along + gapAlong;
  const centre = (item) => ({ along: item.layer * step + along / 2, across: item.at - low });
  const nodes = new Map(all.filter((item) => item.id).map((item) => [item.id, { ...centre(item), layer: item.layer, order: item.order }]));
  const chains = new Map();
  for (const item of all) if (item.chain) chains.set(item.chain, [...(chains.get(item.chain) ?? []), item]);
  const lines = ways.map((way) => ({ from: way[0], to: way[1], points: pointsOf(way, nodes, chains, centre, along) }));
  return { nodes, lines, along: layers.length * step - gapAlong, across: high - low };
}

function pointsOf([from, to], nodes, chains, centre, along) {
  const [start, end] = [nodes.get(from), nodes.get(to)];
  const points = [{ along: start.along + along / 2, across: start.across }];
  for (const item of chains.get(key(from, to)) ?? []) {
    const at = centre(item);
    points.push({ along: at.along - along / 2, across: at.across }, { along: at.along + along / 2, across: at.across });
  }
  points.push({ along: end.along - along / 2, across: end.across });
  return points;
}

const key = (from, to) => `${from}\n${to}`;

function layersOf(ids, ways) {
  const after = new Map(ids.map((id) => [id, []]));
  const before = new Map(ids.map((id) => [id, []]));
  for (const [from, to] of ways) {
    after.get(from).push(to);
    before.get(to).push(from);
  }
  const layer = new Map();
  const under = new Set();
  const depth = (id) => {
    if (layer.has(id)) return layer.get(id);
    // A circle has no longest way: it is cut where it was entered.
    if (under.has(id)) return -1;
    under.add(id);
    layer.set(id, Math.max(-1, ...before.get(id).map(depth)) + 1);
    under.delete(id);
    return layer.get(id);
  };
  ids.forEach(depth);
  // What only feeds others, such as a file and what is made of it, stands right before them.
  const free = (id, deep = 0) => deep < ids.length && before.get(id).every((each) => after.get(each).length === 1 && free(each, deep + 1));
  for (const id of [...ids].sort((a, b) => layer.get(b) - layer.get(a))) {
    const next = after.get(id).map((each) => layer.get(each)).filter((each) => each > layer.get(id));
    if (next.length && free(id)) layer.set(id, Math.min(...next) - 1);
  }
  return layer;
}

function spread(layer, ids, ways, thin, across) {
  const layers = Array.from({ length: Math.max(-1, ...layer.values()) + 1 }, () => []);
  const items = new Map();
  const add = (at, item) => {
    layers[at].push(item);
    return item;
  };
  for (const id of ids) items.set(id, add(layer.get(id), { id, layer: layer.get(id), size: across, before: [], after: [] }));
  for (const [from, to] of ways) {
    let last = items.get(from);
    for (let at = layer.get(from) + 1; at < layer.get(to); at++) {
      const item = add(at, { chain: key(from, to), layer: at, size: thin, before: [], after: [] });
      link(last, item);
      last = item;
    }
    link(last, items.get(to));
  }
  return layers;
}

function link(from, to) {
  from.after.push(to);
  to.before.push(from);
}

function order(layers) {
  const number = () => layers.forEach((items) => items.forEach((item, at) => (item.order = at)));
  number();
  let [best, least] = [layers.map((items) => [...items]), crossings(layers)];
  for (let sweep = 0; sweep < SWEEPS && least; sweep++) {
    const forward = sweep % 2 === 0;
    for (const items of forward ? layers : [...layers].reverse()) {
      const weigh = (item) => {
        const near = forward ? item.before : item.after;
        return near.length ? near.reduce((sum, each) => sum + each.order, 0) / near.length : item.order;
      };
      const weights = new Map(items.map((item) => [item, weigh(item)]));
      items.sort((a, b) => weights.get(a) - weights.get(b) || a.order - b.order);
      items.forEach((item, at) => (item.order = at));
    }
    const found = crossings(layers);
    if (found < least) [best, least] = [layers.map((items) => [...items]), found];
  }
  best.forEach((items, at) => (layers[at] = items));
  number();
}

function crossings(layers) {
  let found = 0;
  for (const items of layers) {
    const lines = items.flatMap((item) => item.after.map((each) => [item.order, each.order]));
    for (let a = 0; a < lines.length; a++) {
      for (let b = a + 1; b < lines.length; b++) found += (lines[a][0] - lines[b][0]) * (lines[a][1] - lines[b][1]) < 0;
    }
  }
  return found;
}

// Each item as near to its neighbours as its own layer lets it.
function place(layers, gap) {
  for (const items of layers) settle(items, items.map((_, at) => at * 40), gap);
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    const forward = sweep % 2 === 0;
    for (const items of forward ? layers : [...layers].reverse()) {
      const wanted = items.map((item) => {
        const near = (forward ? item.before : item.after).length ? (forward ? item.before : item.after) : [...item.before, ...item.after];
        return near.length ? near.reduce((sum, each) => sum + each.at, 0) / near.length : item.at;
      });
      settle(items, wanted, gap);
    }
  }
}

// The places nearest to those wanted (least squares) that keep order and distance: neighbours that press on each other move as one.
function settle(items, wanted, gap) {
  let offset = 0;
  const offsets = items.map((item, at) => {
    if (at) offset += items[at - 1].size / 2 + gap + item.size / 2;
    return offset;
  });
  const blocks = [];
  wanted.forEach((value, at) => {
    blocks.push({ sum: value - offsets[at], count: 1 });
    while (blocks.length > 1 && mean(blocks.at(-2)) > mean(blocks.at(-1))) {
      const last = blocks.pop();
      blocks.at(-1).sum += last.sum;
      blocks.at(-1).count += last.count;
    }
  });
  let at = 0;
  for (const block of blocks) for (let n = 0; n < block.count; n++, at++) items[at].at = mean(block) + offsets[at];
}

const mean = (block) => block.sum / block.count;
