# Compiles for Linux on SPGRAD_TARGET with the clang of Zig (`pip install ziglang`), which brings the
# headers of that system; unoptimized, because it is asked whether the code compiles.
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES SPGRAD_TARGET)
# Nothing is linked, not even where CMake tries the compiler: Zig would compile a C++ library first.
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${SPGRAD_TARGET})
find_program(ZIG python-zig REQUIRED)
set(CMAKE_CXX_COMPILER ${ZIG} c++ -target ${SPGRAD_TARGET}-linux-gnu.2.28 -c)
set(CMAKE_CXX_FLAGS_INIT -fno-sanitize=undefined) # which Zig adds to what is not optimized
set(CMAKE_BUILD_TYPE None)
