// What lets a library that a newer toolchain has linked load where manylinux_2_28 wheels do: glibc
// 2.28, and the libstdc++ of g++ 8. Linked in by -DSPGRAD_MANYLINUX=ON; auditwheel checks the
// result.

#include <pthread.h>
#include <cmath>
#include <sstream>

// The headers of later versions of libstdc++ declare these members of templates as if the library
// had them, and that of g++ 8 has not. Instantiated here, they are part of the kernels' library.
template std::ostringstream::basic_ostringstream();
template std::stringstream::basic_stringstream();
template std::string std::stringbuf::str() const&;
template std::string std::stringbuf::str() &&;

extern "C" {

// glibc 2.32 sets this one in processes of one thread, where shared pointers then leave out atomic
// instructions. The library's own is always false.
char __libc_single_threaded = 0;

// Later versions of glibc have newer versions of these functions beside the older ones, which give
// the same results but for a rounding in the last place. The linker replaces each f by __wrap_f
// (--wrap), which calls the older version.
#if defined(__x86_64__)
#define OLDEST "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define OLDEST "GLIBC_2.17"
#else
#error "packaging/manylinux.cpp: the first version of glibc for this processor is not known"
#endif

double oldest_exp(double);
double oldest_hypot(double, double);
double oldest_log(double);
int oldest_trylock(pthread_mutex_t*);
__asm__(".symver oldest_exp, exp@" OLDEST);
__asm__(".symver oldest_hypot, hypot@" OLDEST);
__asm__(".symver oldest_log, log@" OLDEST);
__asm__(".symver oldest_trylock, pthread_mutex_trylock@" OLDEST);

double __wrap_exp(double x) { return oldest_exp(x); }
double __wrap_hypot(double x, double y) { return oldest_hypot(x, y); }
double __wrap_log(double x) { return oldest_log(x); }
int __wrap_pthread_mutex_trylock(pthread_mutex_t* mutex) { return oldest_trylock(mutex); }
}
