// The newest state of each tile, made of what the server sends: whole states, changes to them, and word that nothing changed.

export class States {
  constructor() {
    this.tiles = new Map();
    // Server time minus ours: ages are counted on the server's clock.
    this.offset = 0;
  }

  get now() {
    return Date.now() + this.offset;
  }

  // Gives the names of the tiles that changed; null when a change is missing and all has to be asked for again.
  apply(frame) {
    if (frame.now) this.offset = frame.now - Date.now();
    const changed = new Set();
    for (const message of frame.tiles ?? []) {
      const before = this.tiles.get(message.tile);
      if (message.columns || message.error) {
        // An error leaves the last figures standing, with their age.
        this.tiles.set(message.tile, message.columns ? message : { ...before, ...message });
      } else if ("from" in message) {
        if (!before || before.v < message.from) return null;
        if (before.v >= message.v) continue;
        this.tiles.set(message.tile, patched(before, message));
      } else if (before) {
        before.updated = message.updated;
      }
      changed.add(message.tile);
    }
    return changed;
  }
}

export function patched(state, message) {
  const rows = state.rows.slice();
  for (const [first, count] of message.drop.slice().reverse()) rows.splice(first, count);
  for (const [at, row] of message.put) rows.splice(at, 0, row);
  return { ...state, rows, v: message.v, updated: message.updated };
}
