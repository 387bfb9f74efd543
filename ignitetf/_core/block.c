/* Memory for columns. Fresh memory pages cost more than the copy into them, so blocks are reused. */
#include "core.h"

/* Protects all pools and the sizes that layouts learn. A fork waits for this lock. Otherwise the
 * thread that held it would not exist in the child, and freeing or reading there would block for
 * ever. */
static pthread_mutex_t shared = PTHREAD_MUTEX_INITIALIZER;

void hold_shared(void) { pthread_mutex_lock(&shared); }

void release_shared(void) { pthread_mutex_unlock(&shared); }

int begin_shared(void) {
  static int begun;
  if (begun) return 0;
  begun = 1;
  return pthread_atfork(hold_shared, release_shared, release_shared);
}

void pool_begin(Pool *pool, int64_t most_idle) {
  pool->idle = NULL;
  pool->idle_bytes = 0;
  pool->most_idle = most_idle;
}

static void block_free(Block *block) {
  free(block->bytes);
  free(block);
}

void pool_end(Pool *pool) {
  while (pool->idle) {
    Block *block = pool->idle;
    pool->idle = block->next;
    block_free(block);
  }
}

/* Rounds a size up by at most a quarter, so that blocks can be reused for similar sizes. */
static int64_t rounded(int64_t size) {
  int64_t step = 64;
  while (size > 8 * step) step *= 2;
  return (size + step - 1) / step * step;
}

/* Returns a block of at least `size` bytes with undefined content; NULL if out of memory. */
Block *block_take(Pool *pool, int64_t size) {
  size = rounded(size > 0 ? size : 1);
  hold_shared();
  Block **at = &pool->idle;
  while (*at && ((*at)->size < size || (*at)->size > 2 * size)) at = &(*at)->next;
  Block *block = *at;
  if (block) {
    *at = block->next;
    pool->idle_bytes -= block->size;
  }
  release_shared();
  if (block) return block;
  block = malloc(sizeof *block);
  if (!block) return NULL;
  block->size = size;
  void *bytes = NULL;
  if (posix_memalign(&bytes, 64, (size_t)size)) {
    free(block);
    return NULL;
  }
  block->bytes = bytes;
  block->next = NULL;
  return block;
}

void block_give(Pool *pool, Block *block) {
  hold_shared();
  int keep = pool->idle_bytes + block->size <= pool->most_idle;
  if (keep) {
    block->next = pool->idle;
    pool->idle = block;
    pool->idle_bytes += block->size;
  }
  release_shared();
  if (!keep) block_free(block);
}
