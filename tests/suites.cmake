# Tells ctest, which runs this when it starts, the suites of a GoogleTest program: each is a test.
# Set before: the program's `name`, the file `program`, and the tests' `properties`.
if(NOT EXISTS "${program}")
  add_test(${name} "${program}")  # which fails
  return()
endif()
execute_process(COMMAND "${program}" --gtest_list_tests OUTPUT_VARIABLE listed
  RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  add_test(${name} "${program}" --gtest_list_tests)  # which fails as well
  return()
endif()
# A suite's line ends with a dot, or with a comment behind it; the lines of its cases are indented.
string(REGEX MATCHALL "\n[^ \n]+\\.[ \n]" lines "\n${listed}")
foreach(line IN LISTS lines)
  string(REGEX REPLACE "\n(.+)\\.[ \n]" "\\1" suite "${line}")
  add_test("${suite}" "${program}" "--gtest_filter=${suite}.*")
  set_tests_properties("${suite}" PROPERTIES ${properties})
endforeach()
