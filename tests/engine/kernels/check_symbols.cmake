# Fails unless each object of an instruction set exports exactly one function: its row of the kernel
# table or of the loops over logits, or the kernel that it has beyond another's. An inline function
# or template of a library that was compiled with these flags and exported could be the copy that
# the linker keeps for the whole program, and stop it on an older machine.
#   cmake -DNM=nm -DOBJECTS="a.o;b.o" -P check_symbols.cmake
set(checked 0)
foreach(object IN LISTS OBJECTS)
  if(NOT object MATCHES "/(cpu/|row_loops_)(a[mv]x[0-9a-z_]*)\\.cpp\\.o(bj)?$")
    continue()
  endif()
  set(isa ${CMAKE_MATCH_2})
  execute_process(COMMAND ${NM} -C -P --defined-only --extern-only ${object}
    OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
  string(STRIP "${output}" output)
  string(REPLACE "\n" ";" symbols "${output}")
  # Unoptimised code of GCC holds this pointer for its exception tables; it is no code.
  list(FILTER symbols EXCLUDE REGEX "^DW\\.ref\\.__gxx_personality_v0 ")
  set(expected "lockstep::${isa}_[a-z_]*(table|kernels?|row_loops)")
  foreach(symbol IN LISTS symbols)
    if(NOT symbol MATCHES "^${expected}\\(\\) T")
      message(SEND_ERROR "${object} exports '${symbol}'; it may export '${expected}()' alone: "
        "put it into the anonymous namespace, or do without it")
    endif()
  endforeach()
  list(LENGTH symbols count)
  if(NOT count EQUAL 1)
    message(SEND_ERROR "${object} exports ${count} symbols instead of 1")
  endif()
  math(EXPR checked "${checked} + 1")
endforeach()
if(checked EQUAL 0)
  message(FATAL_ERROR "no object of an instruction set among: ${OBJECTS}")
endif()
message(STATUS "${checked} objects export their rows alone")
