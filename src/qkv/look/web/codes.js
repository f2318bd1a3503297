// Codes of 16 bits, which hold weights with three significant digits, as `qkv/look/quantize.py` defines them.

/** The value of a pair that the mask excludes. Weights that are not finite are NaN, so no weight is −Infinity. */
export const MASKED = -Infinity;

const ZERO_CODE = 32768;
const NOT_FINITE_CODE = 65535;
const DIGITS = 900;
/** The value of a weight that is too small for its code; the smallest positive number of 32 bits. */
export const TINY = 2 ** -149;

const decoded = /** @type {Map<number, Float32Array>} */ (new Map());

/** Return the weight of each code. @param {number} exponent of the map */
export function weightsOfCodes(exponent) {
  let table = decoded.get(exponent);
  if (table) return table;
  table = new Float32Array(65536);
  for (let index = 1; index < ZERO_CODE; index++) {
    const place = index - 2;
    const decade = exponent + Math.floor(place / DIGITS) - 2;
    const digits = (place % DIGITS) + 100;
    const weight = place < 0 ? TINY : decade < 0 ? digits / 10 ** -decade : digits * 10 ** decade;
    table[ZERO_CODE + index] = weight;
    table[ZERO_CODE - index] = -weight;
  }
  table[0] = MASKED;
  table[NOT_FINITE_CODE] = NaN;
  decoded.set(exponent, table);
  return table;
}

/** Convert codes to weights. @param {Uint16Array} codes @param {number} exponent */
export function dequantize(codes, exponent) {
  const table = weightsOfCodes(exponent);
  const weights = new Float32Array(codes.length);
  for (let i = 0; i < codes.length; i++) weights[i] = table[codes[i]];
  return weights;
}

/** Return bytes as codes; the bytes of each code are in the order of the processor, lower byte first. @param {Uint8Array} bytes */
export function codesOf(bytes) {
  const aligned = bytes.byteOffset % 2 === 0 ? bytes : bytes.slice();
  return new Uint16Array(aligned.buffer, aligned.byteOffset, aligned.byteLength >> 1);
}

/** Return the largest difference between a weight and the exact weight: `error`, or, if that is 0 because three digits are exact, half a unit
 *  of the third. @param {number} weight @param {number} [error] */
export function errorOfWeight(weight, error = 0) {
  const magnitude = Math.abs(weight);
  if (!(magnitude < Infinity)) return 0;
  return error || (magnitude > 2 * TINY ? 0.5 * 10 ** (Math.floor(Math.log10(magnitude) + 1e-6) - 2) : 0);
}

/** Format a weight with some significant digits, three at most; ≈ says that the last one is not certain.
 *  @param {number} weight @param {number} [error] the exact weight differs from `weight` by at most this number; 0: its three digits are exact
 *  @param {number} [digits] */
export function formatWeight(weight, error = 0, digits = digitsOf(weight, error)) {
  if (weight === MASKED) return "masked";
  if (Number.isNaN(weight)) return "not a number";
  if (weight === 0 && error === 0) return "0";
  if (Math.abs(weight) <= 2 * TINY && error < TINY) return "≈ 0";
  // Three certain digits do not make two certain: 0.1149 and 0.1151 are both 0.115, but 0.11 and 0.12.
  return `${isCertain(weight, digits < 3 ? errorOfWeight(weight, error) : error, digits) ? "" : "≈ "}${rounded(weight, digits)}`;
}

/** Format the numbers of a list with one number of significant digits, the smallest one of them. @param {{weight: number, error?: number}[]} numbers */
export function formatWeights(numbers) {
  const digits = Math.min(...numbers.map(({ weight, error = 0 }) => digitsOf(weight, error)));
  return numbers.map(({ weight, error }) => formatWeight(weight, error, digits));
}

/** Return with how many significant digits a weight is printed: three if these are certain, two if it errs by at most half a unit of the
 *  second, or one. @param {number} weight @param {number} error */
export function digitsOf(weight, error) {
  if (isCertain(weight, error, 3)) return 3;
  return 2 * error <= 10 ** (Math.floor(Math.log10(Math.abs(weight))) - 1) ? 2 : 1;
}

/** @param {number} weight @param {number} error @param {number} digits */
const isCertain = (weight, error, digits) => rounded(weight - error, digits) === rounded(weight + error, digits);

/** @param {number} weight @param {number} digits */
function rounded(weight, digits) {
  // Of the decimal number, because its float of 32 bits may be on the other side of 0.0001.
  const magnitude = Math.abs(Number(weight.toPrecision(digits)));
  const sign = weight < 0 ? "−" : "";
  const size = Math.abs(weight);
  if (magnitude > 0 && magnitude < 1e-4) return sign + size.toExponential(digits - 1);
  // `toPrecision` writes 1234 as 1.23e+3.
  return sign + (magnitude >= 10 ** digits ? String(Number(size.toPrecision(digits))) : size.toPrecision(digits));
}
