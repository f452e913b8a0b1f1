// A list of which only the rows on the screen exist, so that 10,000 rows cost as little as 40.

const SPARE = 6;

/**
 * `make()` gives an empty row, `fill(node, item, index)` writes an item into it. Rows have one height, `height()`.
 * `host` scrolls; rows are put into `sheet`, which is inside it.
 */
export class VirtualList {
  constructor(host, sheet, { make, fill, height }) {
    Object.assign(this, { host, sheet, make, fill, height, items: [], pool: [] });
    let asked = 0;
    const later = () => { asked ||= requestAnimationFrame(() => { asked = 0; this.render(); }); };
    host.addEventListener("scroll", later, { passive: true });
    new ResizeObserver(later).observe(host);
  }

  /** Shows other items. */
  set(items) {
    this.items = items;
    this.render(true);
  }

  /** The first row on the screen, and the one after the last. */
  range() {
    const high = this.height();
    const from = Math.max(0, Math.floor((this.host.scrollTop - this.sheet.offsetTop) / high) - SPARE);
    return [from, Math.min(this.items.length, from + Math.ceil(this.host.clientHeight / high) + 2 * SPARE)];
  }

  /** The items on the screen. */
  seen() { return this.items.slice(...this.range()); }

  /** Writes the rows on the screen; those that stay are written again only if `again`. */
  render(again = false) {
    const high = this.height();
    const [from, to] = this.range();
    const resized = high !== this.high;
    this.high = high;
    this.sheet.style.height = `${this.items.length * high}px`;
    while (this.pool.length < to - from) {
      const node = this.make();
      node.at = -1;
      this.pool.push(node);
      this.sheet.append(node);
    }
    const size = this.pool.length;
    const used = new Set();
    for (let index = from; index < to; index += 1) {
      const node = this.pool[index % size];
      used.add(node);
      if (node.at !== index || resized) node.style.transform = `translateY(${index * high}px)`;
      if (node.at !== index || again || node.size !== size) this.fill(node, this.items[index], index);
      node.at = index;
      node.size = size;
      node.hidden = false;
    }
    for (const node of this.pool) if (!used.has(node)) { node.hidden = true; node.at = -1; }
  }

  /** Scrolls as little as is needed to have a row on the screen. */
  reveal(index) {
    const high = this.height();
    const top = this.sheet.offsetTop + index * high;
    const head = this.sheet.offsetTop;
    if (top - head < this.host.scrollTop) this.host.scrollTop = top - head;
    else if (top + high > this.host.scrollTop + this.host.clientHeight) this.host.scrollTop = top + high - this.host.clientHeight;
    this.render();
  }
}
