/* cli/plot: SVG charts, and the page around them: colours, markers, axes. Colours are attributes of the elements, so
 * that viewers which apply no style sheet show them; in a page a style sheet replaces them where it is dark. */
#ifndef HD_CLI_PLOT_H
#define HD_CLI_PLOT_H

#include <stdio.h>

/* Colours of Okabe and Ito, which the colour-blind distinguish; markers and dashes differ as well. */
enum { HD__PLOT_SERIES = 8 };
extern const char *const hd__plot_colours[HD__PLOT_SERIES]; /* on white */

/* A plot's area: its edges, in pixels of the SVG and in units of the axes. */
struct hd__plot {
    FILE *file;
    double left, right, top, bottom;
    double x0, x1, y0, y1;
};

/* <svg>, with the defaults of its text; the caller writes </svg>. As an element of a page, or a file of its own with a
 * white background. */
void hd__plot_open(FILE *file, double width, double height, const char *label);
void hd__plot_open_file(FILE *file, double width, double height);

/* The unit in which an axis shows values of up to `most`: its name, and how many seconds, bytes or parts it is. */
enum { HD__PLOT_PLAIN, HD__PLOT_SECONDS, HD__PLOT_BYTES, HD__PLOT_PARTS }; /* values; parts: of 1, shown as % */
double hd__plot_unit(int values, double most, const char **name);

double hd__plot_x(const struct hd__plot *p, double x); /* pixels */
double hd__plot_y(const struct hd__plot *p, double y);
/* A line of the grid, with its label; NULL: none. */
void hd__plot_tick_x(const struct hd__plot *p, double x, const char *label);
void hd__plot_tick_y(const struct hd__plot *p, double y, const char *label);
/* Lines of the grid at round numbers, "1.5M", about so many of them; marks_y 0: none. */
void hd__plot_ticks(const struct hd__plot *p, int marks_x, int marks_y);
/* The axes' lines and names. */
void hd__plot_axes(const struct hd__plot *p, const char *title, const char *unit, const char *x_name);
/* Series k's line: `<polyline ... points="`; the caller writes points and `"/>`. */
void hd__plot_line(FILE *file, int k, double width, double opacity, int dashed);
/* A rectangle in series k's colour with its top left corner at a pixel; k below 0: empty. */
void hd__plot_box(FILE *file, double x, double y, double width, double height, int k);
/* Series k's marker, centred at a pixel. */
void hd__plot_mark(FILE *file, double x, double y, int k);
void hd__plot_text(FILE *file, double x, double y, const char *anchor, int is_head, const char *text);
/* A piece of a legend: line, marker and name from pixel x on. Returns the next one's x. */
double hd__plot_legend(FILE *file, double x, double y, int k, const char *name);

/* Escaped as XML text; hd__plot_put: as an element. */
void hd__plot_put_xml(FILE *file, const char *plain);
void hd__plot_put(FILE *file, const char *tag, const char *plain);
/* A paragraph: today, and the command line after the program's name. */
void hd__plot_put_command(FILE *file, const char *const *words);

/* A page's beginning up to its title and style; `more` are rules of its own. The caller writes </html>. */
void hd__plot_page(FILE *file, const char *title, const char *more);

#endif
