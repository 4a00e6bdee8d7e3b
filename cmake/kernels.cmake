# The CUDA kernels, as PTX in headers: compiled here where there is an nvcc that works, else as they are in the tree.
set(kernel_folder ${CMAKE_SOURCE_DIR}/gpu/kernels)
set(kernel_headers)
# As tools/update-kernels.sh calls it.
set(kernel_flags -ptx -O3 -std=c++17 -arch=compute_75)

find_program(SLUICE_NVCC nvcc HINTS /usr/local/cuda/bin DOC "NVIDIA's compiler, for the kernels of the GPU engine")
if(SLUICE_NVCC)
  execute_process(COMMAND ${SLUICE_NVCC} ${kernel_flags} -o ${CMAKE_BINARY_DIR}/probe.ptx ${kernel_folder}/gather.cu
                  RESULT_VARIABLE nvcc_failed OUTPUT_QUIET ERROR_QUIET)
endif()
if(SLUICE_NVCC AND NOT nvcc_failed)
  message(STATUS "GPU kernels: compiled by ${SLUICE_NVCC}")
else()
  message(STATUS "GPU kernels: those of the tree, as there is no nvcc that works")
  file(ARCHIVE_EXTRACT INPUT ${kernel_folder}/ptx.tar.xz DESTINATION ${CMAKE_BINARY_DIR}/generated TOUCH)
  set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${kernel_folder}/ptx.tar.xz)
endif()

foreach(kernel gather checksum)
  set(kernel_ptx ${CMAKE_BINARY_DIR}/generated/${kernel}.ptx)
  if(SLUICE_NVCC AND NOT nvcc_failed)
    add_custom_command(OUTPUT ${kernel_ptx} DEPENDS ${kernel_folder}/${kernel}.cu
      COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/generated
      COMMAND ${SLUICE_NVCC} ${kernel_flags} -o ${kernel_ptx} ${kernel_folder}/${kernel}.cu VERBATIM)
  endif()
  set(kernel_header ${CMAKE_BINARY_DIR}/generated/gpu/kernels/${kernel}_ptx.hpp)
  add_custom_command(OUTPUT ${kernel_header} DEPENDS ${kernel_ptx} ${CMAKE_SOURCE_DIR}/cmake/embed_ptx.cmake
    COMMAND ${CMAKE_COMMAND} -DKERNEL=${kernel} -DPTX=${kernel_ptx} -DHEADER=${kernel_header}
            -P ${CMAKE_SOURCE_DIR}/cmake/embed_ptx.cmake VERBATIM)
  list(APPEND kernel_headers ${kernel_header})
endforeach()
