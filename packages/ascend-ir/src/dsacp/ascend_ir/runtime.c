/* Memory of launches, where every access of a kernel is looked up before it is made.
 *
 * Arguments lie in slots of address space so far apart that no 32-bit index reaches from one into
 * another, and all around them is closed to reading and writing, so that an access which is not
 * looked up ends the process. Local buffers of one program lie one after the other and are never
 * reused.
 *
 * Build with -O2 -shared -fPIC.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 4096UL
#define SLOT_SHIFT 35
#define SLOT (1UL << SLOT_SHIFT)
#define MAX_SLOTS 96
#define HEAP (1UL << 36)
#define GRANULE 64UL
#define KEPT (64UL << 20) /* bytes of local buffers that stay with the process */
#define MAX_NOTES 512
#define MANY (-1)

enum { FAULT_LOAD, FAULT_STORE, RACE_WRITES, RACE_READ };

typedef struct {
  uint64_t start, size;      /* bytes of the argument */
  uint64_t map, map_size;    /* pages that are open */
  const uint8_t *before;     /* its bytes at the launch */
  int32_t *writer, *reader;  /* a program and one, for every byte; 0 is none */
} slot;

typedef struct { uint64_t start, size; } buffer;

/* What went wrong at one place of the source, with one argument, on one side of it. */
typedef struct {
  int32_t kind, site, slot, programs[4], num_programs;
  int64_t nearest, farthest, count;
} note;

typedef struct {
  int32_t kind, site, slot, size, other;
  uint64_t offset;
  uint8_t old[8];
} pending;

static char *arena, *heap;
static slot slots[MAX_SLOTS];
static int num_slots, checking, watching;
static buffer *buffers;
static uint32_t num_buffers, cap_buffers, *granules;
static uint64_t heap_used, heap_top, heap_sum, heap_peak;
static int poison;
static int64_t program_now, block_now;
static note notes[MAX_NOTES];
static int32_t num_notes, notes_lost;
static pending *later;
static int64_t num_later, cap_later;
static uint64_t scratch[8];

int ascend_ir_init(void) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  if (arena) return 0;
  arena = mmap(0, SLOT * MAX_SLOTS, PROT_NONE, flags, -1, 0);
  heap = mmap(0, HEAP, PROT_READ | PROT_WRITE, flags, -1, 0);
  granules = mmap(0, HEAP / GRANULE * sizeof *granules, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (arena == MAP_FAILED || heap == MAP_FAILED || (void *)granules == MAP_FAILED) {
    arena = 0;
    return -1;
  }
  return 0;
}

/* Open pages for an argument and return its address, 0 where there is no room. `end` puts its last
 * byte before a closed page, else its first byte comes after one. */
uint64_t ascend_ir_place(const uint8_t *before, uint64_t size, int end, int watch) {
  uint64_t pages = (size + PAGE - 1) / PAGE * PAGE;
  if (num_slots == MAX_SLOTS || pages > SLOT / 2) return 0;
  slot *s = &slots[num_slots];
  s->map = (uint64_t)arena + SLOT * num_slots + SLOT / 2 - pages / 2 / PAGE * PAGE;
  s->map_size = pages;
  s->size = size;
  s->start = end ? s->map + pages - size : s->map;
  s->before = before;
  s->writer = s->reader = 0;
  if (pages && mprotect((void *)s->map, pages, PROT_READ | PROT_WRITE)) return 0;
  if (size) memcpy((void *)s->start, before, size);
  if (watch && size) {
    s->writer = calloc(size, sizeof *s->writer);
    s->reader = calloc(size, sizeof *s->reader);
    if (!s->writer || !s->reader) return 0;
  }
  num_slots++;
  return s->start;
}

void ascend_ir_clear(void) {
  for (int i = 0; i < num_slots; i++) {
    free(slots[i].writer);
    free(slots[i].reader);
    if (!slots[i].map_size) continue;
    mprotect((void *)slots[i].map, slots[i].map_size, PROT_NONE);
    madvise((void *)slots[i].map, slots[i].map_size, MADV_DONTNEED);
  }
  num_slots = 0;
}

void ascend_ir_begin(int check, int watch) {
  checking = check;
  watching = watch;
  num_notes = notes_lost = 0;
  num_later = 0;
  heap_peak = 0;
}

/* Programs count from 1: 0 is nobody. */
void ascend_ir_program(int64_t program, int64_t block, int byte) {
  if (heap_top > KEPT) madvise(heap, heap_top, MADV_DONTNEED);
  program_now = program + 1;
  block_now = block;
  poison = byte;
  memset(granules, 0, heap_top / GRANULE * sizeof *granules);
  num_buffers = 1; /* the first stands for no buffer */
  heap_used = PAGE;
  heap_sum = 0;
  heap_top = 0;
}

int64_t ascend_ir_block(void) { return block_now; }
uint64_t ascend_ir_peak(void) { return heap_peak; }
int32_t ascend_ir_notes(note **list, int32_t *lost) { *list = notes; *lost = notes_lost; return num_notes; }

static void take_note(int kind, int site, int at, int64_t offset, int64_t program) {
  for (int i = 0; i < num_notes; i++) {
    note *n = &notes[i];
    if (n->kind != kind || n->site != site || n->slot != at || (n->nearest < 0) != (offset < 0)) continue;
    n->count++;
    if (llabs(offset) < llabs(n->nearest)) n->nearest = offset;
    if (llabs(offset) > llabs(n->farthest)) n->farthest = offset;
    for (int k = 0; k < n->num_programs; k++) if (n->programs[k] == program) return;
    if (n->num_programs < 4) n->programs[n->num_programs++] = (int32_t)program;
    return;
  }
  if (num_notes == MAX_NOTES) { notes_lost++; return; }
  notes[num_notes++] = (note){kind, site, at, {(int32_t)program}, 1, offset, offset, 1};
}

/* Local buffers: poisoned, and surrounded by as much empty space as they are large. */
void *ascend_ir_malloc(uint64_t bytes) {
  uint64_t gap = (bytes + PAGE) / PAGE * PAGE;
  uint64_t body = (bytes + PAGE - 1) / PAGE * PAGE;
  uint64_t at = heap_used + gap;
  if (!heap || at + body + gap > HEAP) abort();
  if (num_buffers >= cap_buffers) {
    cap_buffers = cap_buffers ? 2 * cap_buffers : 1024;
    buffers = realloc(buffers, cap_buffers * sizeof *buffers);
    if (!buffers) abort();
    buffers[0] = (buffer){0, 0};
  }
  for (uint64_t g = at / GRANULE; g < (at + body) / GRANULE; g++) granules[g] = num_buffers;
  buffers[num_buffers++] = (buffer){(uint64_t)heap + at, bytes};
  heap_used = at + body;
  heap_sum += bytes;
  heap_top = heap_used;
  if (bytes) memset(heap + at, poison, bytes);
  if (heap_sum > heap_peak) heap_peak = heap_sum;
  return heap + at;
}

void ascend_ir_free(void *at) { (void)at; }

static slot *slot_at(uint64_t address) {
  uint64_t offset = address - (uint64_t)arena;
  if (offset >= SLOT * MAX_SLOTS || (offset >> SLOT_SHIFT) >= (uint64_t)num_slots) return 0;
  return &slots[offset >> SLOT_SHIFT];
}

/* Note an access outside, with its distance from the argument or buffer that is nearest. */
static void *outside(uint64_t address, int32_t size, int32_t site, int store) {
  slot *s = slot_at(address);
  int64_t offset = (int64_t)address;
  int32_t at = -2;
  if (s) {
    at = (int32_t)(s - slots);
    offset = address < s->start ? (int64_t)(address - s->start) : (int64_t)(address + size - s->start - s->size);
  } else if (heap && address - (uint64_t)heap < HEAP && num_buffers > 1) {
    uint32_t best = 1;
    for (uint32_t i = 1; i < num_buffers; i++)
      if (address >= buffers[i].start) best = i;
    at = -1;
    offset = address < buffers[best].start ? (int64_t)(address - buffers[best].start)
             : (int64_t)(address + size - buffers[best].start - buffers[best].size);
    if (best + 1 < num_buffers && buffers[best + 1].start - address < (uint64_t)llabs(offset))
      offset = (int64_t)(address - buffers[best + 1].start);
  }
  take_note(store ? FAULT_STORE : FAULT_LOAD, site, at, offset, program_now - 1);
  memset(scratch, poison, sizeof scratch);
  return scratch;
}

static int is_local(uint64_t address, int32_t size) {
  uint64_t offset = address - (uint64_t)heap;
  if (offset >= heap_top) return 0;
  buffer *b = &buffers[granules[offset / GRANULE]];
  return address - b->start + size <= b->size;
}

static void remember(int kind, int site, slot *s, uint64_t offset, int32_t size, int32_t other) {
  if (num_later == cap_later) {
    cap_later = cap_later ? 2 * cap_later : 4096;
    later = realloc(later, cap_later * sizeof *later);
    if (!later) abort();
  }
  pending *p = &later[num_later++];
  *p = (pending){kind, site, (int32_t)(s - slots), size, other, offset, {0}};
  memcpy(p->old, (void *)(s->start + offset), size);
}

static void read_by(slot *s, uint64_t offset, int32_t size, int32_t site) {
  int32_t me = (int32_t)program_now;
  for (int i = 0; i < size; i++) {
    uint64_t at = offset + i;
    int32_t other = s->writer[at];
    if (other && other != me && s->before[at] != *(uint8_t *)(s->start + at))
      take_note(RACE_READ, site, (int32_t)(s - slots), offset, me - 1);
    int32_t seen = s->reader[at];
    s->reader[at] = seen == 0 || seen == me ? me : MANY;
  }
}

static void written_by(slot *s, uint64_t offset, int32_t size, int32_t site) {
  int32_t me = (int32_t)program_now, other = 0, reader = 0;
  for (int i = 0; i < size; i++) {
    int32_t w = s->writer[offset + i], r = s->reader[offset + i];
    if (w && w != me) other = w;
    if (r && r != me) reader = r;
    s->writer[offset + i] = me;
  }
  if (other) remember(RACE_WRITES, site, s, offset, size, other);
  else if (reader) remember(RACE_READ, site, s, offset, size, reader);
}

/* After a program: words that others wrote or read and that now hold another value. */
void ascend_ir_program_end(void) {
  for (int64_t i = 0; i < num_later; i++) {
    pending *p = &later[i];
    if (memcmp(p->old, (void *)(slots[p->slot].start + p->offset), p->size))
      take_note(p->kind, p->site, p->slot, (int64_t)p->offset, program_now - 1);
  }
  num_later = 0;
}

static void *look_up(void *pointer, int32_t size, int32_t site, int store) {
  uint64_t address = (uint64_t)pointer;
  if (is_local(address, size) || !checking) return pointer;
  slot *s = slot_at(address);
  if (!s || address - s->start >= s->size || address - s->start + size > s->size)
    return outside(address, size, site, store);
  if (watching && s->writer) (store ? written_by : read_by)(s, address - s->start, size, site);
  return pointer;
}

void *ascend_ir_load(void *pointer, int32_t size, int32_t site) { return look_up(pointer, size, site, 0); }
void *ascend_ir_store(void *pointer, int32_t size, int32_t site) { return look_up(pointer, size, site, 1); }

/* bf16 conversion that older libgcc lacks: bits in the low half of a vector register. */
float __truncsfbf2(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) bits |= 0x400000u;
  else bits += 0x7fff + ((bits >> 16) & 1);
  bits >>= 16;
  memcpy(&value, &bits, 4);
  return value;
}
