// Requests of a notebook widget to the kernel, which may respond in any order.

/** Return a function that sends a message to the kernel, and returns its response and the bytes that belong to it.
 *  @param {any} model of anywidget @returns {(fields: any) => Promise<[any, DataView[]]>} */
export function toKernel(model) {
  let last = 0;
  const pending = /** @type {Map<number, (response: [any, DataView[]]) => void>} */ (new Map());
  model.on("msg:custom", (/** @type {any} */ message, /** @type {DataView[]} */ buffers) => {
    pending.get(message.id)?.([message, buffers]);
    pending.delete(message.id);
  });
  return (fields) => new Promise((resolve) => {
    pending.set(++last, resolve);
    model.send({ id: last, ...fields });
  });
}
