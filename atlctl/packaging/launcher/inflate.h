/* Unpacks one block of raw DEFLATE data (RFC 1951) from memory to memory. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { LONGEST_CODE = 15, TABLE = 1 << LONGEST_CODE };

typedef struct {
    const uint8_t *next, *end;
    uint64_t held; /* bits that were read and not used, the next one lowest */
    int count;     /* how many of them; bits behind the end of the data count, too, and are zero */
    int missing;   /* bytes that were asked for behind the end */
} Bits;

static void fill(Bits *bits) {
    while (bits->count <= 56) {
        uint64_t byte = 0;
        if (bits->next < bits->end) byte = *bits->next++;
        else bits->missing++;
        bits->held |= byte << bits->count;
        bits->count += 8;
    }
}

static unsigned take(Bits *bits, int number) {
    if (bits->count < number) fill(bits);
    unsigned value = (unsigned)(bits->held & ((1u << number) - 1));
    bits->held >>= number;
    bits->count -= number;
    return value;
}

/* table[next 15 bits] = symbol << 4 | length of its code; 0 where no code begins so. Returns 0 where codes overlap. */
static int build(uint16_t *table, const uint8_t *lengths, int symbols) {
    unsigned counts[LONGEST_CODE + 1] = {0}, code[LONGEST_CODE + 1] = {0};
    for (int symbol = 0; symbol < symbols; symbol++) counts[lengths[symbol]]++;
    counts[0] = 0;
    for (int length = 1; length <= LONGEST_CODE; length++) {
        code[length] = (code[length - 1] + counts[length - 1]) << 1;
        if (code[length] + counts[length] > 1u << length) return 0;
    }
    memset(table, 0, TABLE * sizeof *table);
    for (int symbol = 0; symbol < symbols; symbol++) {
        int length = lengths[symbol];
        if (!length) continue;
        unsigned forward = code[length]++, backward = 0;
        for (int bit = 0; bit < length; bit++) backward |= (forward >> bit & 1) << (length - 1 - bit);
        for (unsigned at = backward; at < TABLE; at += 1u << length) table[at] = (uint16_t)(symbol << 4 | length);
    }
    return 1;
}

/* The next symbol, -1 where no code fits. */
static int symbol(Bits *bits, const uint16_t *table) {
    if (bits->count < LONGEST_CODE) fill(bits);
    unsigned found = table[bits->held & (TABLE - 1)];
    if (!found) return -1;
    bits->held >>= found & 15;
    bits->count -= found & 15;
    return (int)(found >> 4);
}

/* The two tables that stand, packed themselves, at the head of a block of type 2. */
static int read_tables(Bits *bits, uint16_t *literals, uint16_t *distances) {
    static const uint8_t order[19] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
    uint8_t lengths[286 + 32] = {0}, first[19] = {0};
    int literal_count = (int)take(bits, 5) + 257, distance_count = (int)take(bits, 5) + 1;
    int count = (int)take(bits, 4) + 4, at = 0, total = literal_count + distance_count;
    if (literal_count > 286) return 0;
    for (int index = 0; index < count; index++) first[order[index]] = (uint8_t)take(bits, 3);
    if (!build(literals, first, 19)) return 0;
    while (at < total) {
        int code = symbol(bits, literals), times = 1;
        uint8_t length = 0;
        if (code < 0 || bits->missing > 8) return 0;
        if (code < 16) length = (uint8_t)code;
        else if (code == 16) {
            if (!at) return 0;
            length = lengths[at - 1];
            times = 3 + (int)take(bits, 2);
        } else times = code == 17 ? 3 + (int)take(bits, 3) : 11 + (int)take(bits, 7);
        if (times > total - at) return 0;
        while (times--) lengths[at++] = length;
    }
    return build(literals, lengths, literal_count) && build(distances, lengths + literal_count, distance_count);
}

static void fixed_tables(uint16_t *literals, uint16_t *distances) {
    uint8_t lengths[288];
    for (int index = 0; index < 288; index++) lengths[index] = index < 144 ? 8 : index < 256 ? 9 : index < 280 ? 7 : 8;
    build(literals, lengths, 288);
    memset(lengths, 5, 30);
    build(distances, lengths, 30);
}

/* Unpacks `packed` into exactly `size` bytes at `out`. Returns 0 where the data is no such thing. */
static int inflate(const uint8_t *packed, size_t packed_size, uint8_t *out, size_t size) {
    static const uint16_t length_base[29] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                             31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
    static const uint8_t length_bits[29] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                            2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
    static const uint16_t distance_base[30] = {1,   2,   3,   4,   5,   7,    9,    13,   17,   25,
                                               33,  49,  65,  97,  129, 193,  257,  385,  513,  769,
                                               1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
    static uint16_t literals[TABLE], distances[TABLE];
    Bits bits = {packed, packed + packed_size, 0, 0, 0};
    size_t at = 0;
    int last;
    do {
        last = (int)take(&bits, 1);
        unsigned type = take(&bits, 2);
        if (type == 0) {
            take(&bits, bits.count & 7);
            unsigned length = take(&bits, 16);
            if (take(&bits, 16) != (length ^ 0xffff) || length > size - at) return 0;
            while (length--) out[at++] = (uint8_t)take(&bits, 8);
        } else if (type == 3) return 0;
        else {
            if (type == 1) fixed_tables(literals, distances);
            else if (!read_tables(&bits, literals, distances)) return 0;
            for (;;) {
                int code = symbol(&bits, literals);
                if (code == 256) break;
                if (code < 0 || code > 285) return 0;
                if (code < 256) {
                    if (at == size) return 0;
                    out[at++] = (uint8_t)code;
                    continue;
                }
                size_t length = length_base[code - 257] + take(&bits, length_bits[code - 257]);
                code = symbol(&bits, distances);
                if (code < 0 || code > 29) return 0;
                size_t back = distance_base[code] + take(&bits, code < 2 ? 0 : (code >> 1) - 1);
                if (back > at || length > size - at) return 0;
                for (size_t end = at + length; at < end; at++) out[at] = out[at - back];
            }
        }
        if (bits.missing > 8) return 0;
    } while (!last);
    return at == size;
}
