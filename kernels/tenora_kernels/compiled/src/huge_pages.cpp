#include "huge_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <new>

namespace tenora {
namespace {

constexpr int64_t LINE = 64, HUGE_PAGE = int64_t{1} << 21;
constexpr int64_t REGION = 32 * HUGE_PAGE;  // at least; what nobody writes to is never taken

int64_t rounded_up(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

std::shared_ptr<char> new_region(int64_t bytes) {
  char* memory = static_cast<char*>(std::aligned_alloc(HUGE_PAGE, bytes));
  if (!memory) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  madvise(memory, bytes, MADV_HUGEPAGE);  // refused: pages of 4 KB serve as well, only slower
#endif
  return {memory, std::free};
}

}  // namespace

std::shared_ptr<char> in_huge_pages(int64_t bytes) {
  static std::mutex mutex;
  static std::weak_ptr<char> last;  // region
  static int64_t used, size;
  const std::lock_guard<std::mutex> guard(mutex);
  const int64_t taken = rounded_up(std::max<int64_t>(bytes, 1), LINE);
  std::shared_ptr<char> region = last.lock();
  if (!region || used + taken > size) {
    size = std::max(REGION, rounded_up(taken, HUGE_PAGE));
    last = region = new_region(size);
    used = 0;
  }
  char* memory = region.get() + used;
  used += taken;
  return {region, memory};
}

}  // namespace tenora
