/* core/base/file: folders of files, and where output goes. */
#ifndef HD_CORE_BASE_FILE_H
#define HD_CORE_BASE_FILE_H

/* Makes the folders that a file's path goes through, where they are missing. 0, or errno of the first that could not
 * be made. */
int hd__make_folders(const char *path);

/* Could this file be written, and the folders that it goes through be made? 0, or errno; nothing is made. */
int hd__can_write(const char *path);

/* Is there a terminal at the end of what this process prints? hd__output_set_not_terminal: whoever started it knows
 * of none. */
int hd__output_is_terminal(void);
void hd__output_set_not_terminal(void);

#endif
