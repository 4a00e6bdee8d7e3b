# Five packages from the components `sluice`, `lab`, `library`, `dev` and `python`. They also work on later releases than the one they
# were built on, because libraries whose versions differ between releases are included, in a private directory.

# Libraries of the system that are not included (libc6, libstdc++6, libgcc-s1), because newer versions are compatible with older
# ones. The regular expression for their names is in a file that the scripts here also read.
file(STRINGS debian/system-libraries system_libraries)
# Libraries that libsluice needs; the package libsluice1 includes them for all packages.
set(library_private "^lib(spdlog|fmt)\\.so")
set(private_dir ${CMAKE_INSTALL_LIBDIR}/sluice/private)

# DT_RPATH, not DT_RUNPATH, because it also applies to the dependencies of the private libraries.
foreach(target sluice sluice-lab sluice_client)
  target_link_options(${target} PRIVATE -Wl,--disable-new-dtags)
endforeach()
set_target_properties(sluice sluice-lab PROPERTIES INSTALL_RPATH "$ORIGIN/../${private_dir}")
set_target_properties(sluice_client PROPERTIES INSTALL_RPATH "$ORIGIN/sluice/private")

# install_private(COMPONENT FILE REGEX...): installs the libraries that FILE is linked with, except those that match a REGEX.
function(install_private component file)
  string(REPLACE ";" "]==] [==[" except "${ARGN}")
  install(CODE "
    file(GET_RUNTIME_DEPENDENCIES LIBRARIES \"${file}\" RESOLVED_DEPENDENCIES_VAR found PRE_EXCLUDE_REGEXES [==[${except}]==])
    foreach(each_found IN LISTS found)
      file(INSTALL DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${private_dir}\" TYPE SHARED_LIBRARY FOLLOW_SYMLINK_CHAIN
           FILES \"\${each_found}\")
    endforeach()" COMPONENT ${component})
endfunction()
install_private(library $<TARGET_FILE:sluice_client> ${system_libraries})
install_private(sluice $<TARGET_FILE:sluice> ${system_libraries} ${library_private})

# Our licence, and those of all libraries that are linked in or included, from the packages of the system.
set(copyright ${CMAKE_CURRENT_BINARY_DIR}/copyright)
add_custom_command(OUTPUT ${copyright} DEPENDS sluice debian/copyright.sh ${CMAKE_SOURCE_DIR}/LICENSE
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/debian/copyright.sh ${CMAKE_SOURCE_DIR}/LICENSE $<TARGET_FILE:sluice> ${copyright} VERBATIM)
add_custom_target(sluice_packages DEPENDS ${copyright} sluice sluice-lab sluice_client sluice_hf3fs sluice_manuals)
if(TARGET sluice_dropin)
  add_dependencies(sluice_packages sluice_dropin)
endif()
set(doc_dir ${CMAKE_INSTALL_DATADIR}/doc)
install(FILES ${copyright} DESTINATION ${doc_dir}/sluice COMPONENT sluice)
install(FILES ${copyright} DESTINATION ${doc_dir}/sluice-lab COMPONENT lab)
install(FILES ${copyright} DESTINATION ${doc_dir}/libsluice1 COMPONENT library)
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION ${doc_dir}/libsluice-dev RENAME copyright COMPONENT dev)
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION ${doc_dir}/python3-sluice RENAME copyright COMPONENT python)

install(FILES etc/logrotate DESTINATION /etc/logrotate.d RENAME sluice COMPONENT sluice)
install(FILES etc/needrestart.conf DESTINATION /etc/needrestart/conf.d RENAME sluice.conf COMPONENT sluice)

# Debian's directory for all versions of Python 3, with the metadata for importlib.metadata and pip.
set(python_dir lib/python3/dist-packages)
configure_file(debian/METADATA.in METADATA @ONLY)
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/INSTALLER "debian\n")
install(DIRECTORY ${CMAKE_SOURCE_DIR}/client/python/sluice DESTINATION ${python_dir} COMPONENT python
        PATTERN __pycache__ EXCLUDE)
install(FILES ${CMAKE_SOURCE_DIR}/client/python/_sluice_accelerate.py ${CMAKE_SOURCE_DIR}/client/python/sluice-accelerate.pth
        DESTINATION ${python_dir} COMPONENT python)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/METADATA ${CMAKE_CURRENT_BINARY_DIR}/INSTALLER
        DESTINATION ${python_dir}/sluice-${PROJECT_VERSION}.dist-info COMPONENT python)
# As in client/python/pyproject.toml.
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/entry_points.txt
     "[vllm.general_plugins]\nsluice = sluice.integrations.vllm_loader:register\n")
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/entry_points.txt
        DESTINATION ${python_dir}/sluice-${PROJECT_VERSION}.dist-info COMPONENT python)
install(FILES ${CMAKE_SOURCE_DIR}/client/python/sluice-hf3fs.pth DESTINATION ${python_dir} COMPONENT python)

set(CPACK_GENERATOR DEB)
# The maintainer is the person who builds the package, from Debian's variables or git's configuration.
set(contact "$ENV{DEBFULLNAME} <$ENV{DEBEMAIL}>")
if(NOT contact MATCHES ". <.+>")
  execute_process(COMMAND git -C ${CMAKE_SOURCE_DIR} var GIT_COMMITTER_IDENT OUTPUT_VARIABLE contact ERROR_QUIET)
  string(REGEX MATCH "^[^>]+ <[^>]+>" contact "${contact}")
endif()
if(NOT contact)
  cmake_host_system_information(RESULT host QUERY FQDN)
  set(contact "unknown <$ENV{USER}@${host}>")
endif()
set(CPACK_PACKAGE_CONTACT ${contact})
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_SOURCE_DIR}/build/packages)
set(CPACK_SET_DESTDIR ON) # /etc is not below /usr
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_COMPONENTS_ALL sluice lab library dev python)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(version ${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})
execute_process(COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/debian/changelog.sh ${version} "${contact}" ${CMAKE_SOURCE_DIR}
                        ${CMAKE_CURRENT_BINARY_DIR}/changes COMMAND_ERROR_IS_FATAL ANY)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/CHANGELOG.md)
foreach(package sluice:sluice sluice-lab:lab libsluice1:library libsluice-dev:dev python3-sluice:python)
  string(REGEX MATCH "(.*):(.*)" package ${package})
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/changes/changelog.Debian.gz DESTINATION ${doc_dir}/${CMAKE_MATCH_1}
          COMPONENT ${CMAKE_MATCH_2})
endforeach()
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/changes/changelog.gz DESTINATION ${doc_dir}/sluice COMPONENT sluice)
install(FILES debian/lintian-overrides DESTINATION ${CMAKE_INSTALL_DATADIR}/lintian/overrides RENAME sluice COMPONENT sluice)
configure_file(debian/cpack.cmake.in cpack.cmake @ONLY)
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_CURRENT_BINARY_DIR}/cpack.cmake)

set(CPACK_DEBIAN_SLUICE_PACKAGE_NAME sluice)
set(CPACK_COMPONENT_SLUICE_DESCRIPTION "one filesystem over fast and slow disks, with reads into GPU memory
Presents several directories (tiers) as one tree, keeps every file an ordinary
file on one of them, moves hot files to fast disks and cold ones to slow disks,
and reads files into GPU memory at the speed of the bus.")
set(CPACK_DEBIAN_SLUICE_PACKAGE_SECTION admin)
set(CPACK_DEBIAN_SLUICE_PACKAGE_SUGGESTS "sluice-lab, python3-sluice, libsluice-dev, logrotate, bash-completion")
foreach(script postinst prerm postrm conffiles)
  list(APPEND CPACK_DEBIAN_SLUICE_PACKAGE_CONTROL_EXTRA ${CMAKE_CURRENT_SOURCE_DIR}/debian/sluice/${script})
endforeach()

# It is linked with the libraries that the package sluice includes.
set(CPACK_DEBIAN_LAB_PACKAGE_NAME sluice-lab)
set(CPACK_COMPONENT_LAB_DESCRIPTION "simulator and benchmarks of Sluice
Replays traces of file accesses against tiering policies, generates traces, and
measures Sluice beside other filesystems and other routes to GPU memory. It is
not needed to run Sluice.")
set(CPACK_DEBIAN_LAB_PACKAGE_SECTION admin)

set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME libsluice1)
set(CPACK_COMPONENT_LIBRARY_DESCRIPTION "file bytes to and from GPU memory
The library of Sluice: transfers the bytes of files, on a Sluice mount or
elsewhere, to and from GPU memory.")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
configure_file(debian/libsluice1/shlibs.in shlibs @ONLY)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA ${CMAKE_CURRENT_BINARY_DIR}/shlibs ${CMAKE_CURRENT_SOURCE_DIR}/debian/libsluice1/triggers)

set(CPACK_DEBIAN_DEV_PACKAGE_NAME libsluice-dev)
set(CPACK_COMPONENT_DEV_DESCRIPTION "file bytes to and from GPU memory: headers
Headers for programs that use libsluice or the ioctls of Sluice.")
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "libsluice1 (= ${version})")

set(CPACK_DEBIAN_PYTHON_PACKAGE_NAME python3-sluice)
set(CPACK_COMPONENT_PYTHON_DESCRIPTION "file bytes to and from GPU memory: Python
The Python package of Sluice, for PyTorch, NumPy and plain buffers.")
set(CPACK_DEBIAN_PYTHON_PACKAGE_SECTION python)
set(CPACK_DEBIAN_PYTHON_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_PYTHON_PACKAGE_DEPENDS "python3 (>= 3.11), libsluice1 (>= ${version})")
set(CPACK_DEBIAN_PYTHON_PACKAGE_SUGGESTS python3-numpy)
foreach(script postinst prerm)
  list(APPEND CPACK_DEBIAN_PYTHON_PACKAGE_CONTROL_EXTRA ${CMAKE_CURRENT_SOURCE_DIR}/debian/python3-sluice/${script})
endforeach()

get_cmake_property(components COMPONENTS)
list(REMOVE_ITEM components ${CPACK_COMPONENTS_ALL})
if(components)
  message(FATAL_ERROR "These components belong to no package: '${components}'")
endif()
include(CPack)
